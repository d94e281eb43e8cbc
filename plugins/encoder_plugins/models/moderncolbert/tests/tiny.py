"""Tiny ColBERT checkpoints on ModernBERT with random weights, one for each form that users publish.

``save`` runs in the environment of sentence-transformers; ``build`` is for everybody else.
"""

from __future__ import annotations

import shutil
import string
from pathlib import Path

import torch
import transformers

from encoder_checkpoints import colbert_builder
from encoder_checkpoints.colbert_builder import DIMENSIONS, WIDTH, Tiny
from encoder_plugins.families.retrieval.cases import PASSAGES, TEXTS

# PyLate's documents have up to 180 tokens where a checkpoint does not say
POSITIONS = 192
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

TINY = [
    # queries are filled up to more tokens than the window of local layers reaches
    Tiny(
        name="pylate",
        pylate={"query_length": 32, "document_length": 64},
        # one that begins as queries do, which PyLate marks once more
        prompts={"fact": "a fact: ", "marked": "[Q] again: ", "summary": ""},
    ),
    Tiny(
        name="pylate-attend",
        pylate={"query_length": 24, "document_length": 48, "attend_to_expansion_tokens": True},
        # white space at either end of what PyLate strips
        prompts={"query": "\tsearch query: ", "document": "", "fact": " a fact:\n", "summary": ""},
    ),
    Tiny(
        name="pylate-no-expansion",
        pylate={"query_length": 24, "document_length": 48, "do_query_expansion": False, "skiplist_words": ["the", "."]},
        masked=True,
    ),
    # everything is left to PyLate's defaults, and documents are longer than the tokenizer's own limit
    Tiny(
        name="pylate-defaults",
        pylate={},
        left_open=(
            *("query_prefix", "document_prefix", "prompts", "default_prompt_name", "similarity_fn_name"),
            *("skiplist_words", "do_query_expansion", "attend_to_expansion_tokens"),
        ),
    ),
    # no length of queries that are not expanded; residual branches with a matrix and without one
    Tiny(
        name="pylate-three-dense",
        pylate={"document_length": 48, "do_query_expansion": False},
        dense=((96, True), (96, True), (DIMENSIONS, True)),
        activation=torch.nn.GELU,
    ),
    Tiny(
        name="stanford",
        stanford={"query_token_id": "[Q]", "doc_token_id": "[D]", "query_maxlen": 24, "doc_maxlen": 48},
    ),
    Tiny(
        name="native-three-dense",
        transformer={
            "query_expansion": {"strategy": "min", "length": 20, "attend": False},
            "query_length": 64,
            "document_length": 80,
        },
        dense=((WIDTH, True), (WIDTH, True), (DIMENSIONS, True)),
        activation=torch.nn.GELU,
        skiplist={"skiplist_words": [*string.punctuation, "unknown word"], "skiplist_tasks": ["query", "document"]},
        # to sentence-transformers the prefix is a part of a prompt, which another one may lack
        prompts={"fact": "[Q] a fact:\n", "plain": ""},
    ),
]


def build(name: str, folder: Path) -> Path:
    """Write the tiny checkpoint called ``name`` below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.moderncolbert.tests.tiny:save", name)
    return Path(shutil.copytree(cached / name, folder / name))


def save(folder: Path, name: str) -> None:
    """Save a tiny checkpoint below ``folder``, with the library."""
    tokenizer = colbert_builder.byte_level_tokenizer(
        [*TEXTS.values(), *PASSAGES],
        SPECIAL,
        "[CLS] $A [SEP]",
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    tiny = next(tiny for tiny in TINY if tiny.name == name)
    colbert_builder.save(folder, tiny, tokenizer, lambda size: transformers.ModernBertModel(_config(size)))


def _config(vocabulary: int) -> transformers.ModernBertConfig:
    # heads of 32 are the smallest that vLLM's CPU attention has
    return transformers.ModernBertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=POSITIONS,
        local_attention=16,
        pad_token_id=0,
        bos_token_id=2,
        cls_token_id=2,
        eos_token_id=3,
        sep_token_id=3,
    )
