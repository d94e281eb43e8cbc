"""Tiny ColBERT checkpoints on LFM2 with random weights, one for each form that users publish.

``save`` runs in the environment of sentence-transformers; ``build`` is for everybody else.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from encoder_checkpoints import colbert_builder
from encoder_checkpoints.colbert_builder import DIMENSIONS, POSITIONS, WIDTH, Tiny
from encoder_plugins.families.retrieval.cases import PASSAGES, TEXTS

# as LFM2's tokenizer: a text begins with a token and ends with none, and there is no mask token
SPECIAL = ["<|pad|>", "<|unknown|>", "<|startoftext|>", "<|im_end|>"]
LAYERS = ["conv", "full_attention", "conv", "conv", "full_attention"]

TINY = [
    Tiny(name="pylate", pylate={"query_length": 32, "document_length": 64}),
    Tiny(
        name="pylate-attend",
        pylate={"query_length": 24, "document_length": 48, "attend_to_expansion_tokens": True},
        prompts={"query": "search query: ", "fact": " a fact:\n"},
    ),
    Tiny(
        name="native-two-dense",
        transformer={
            "query_expansion": {"strategy": "min", "length": 20, "attend": False, "token": "<|pad|>"},
            "query_length": 64,
            "document_length": 80,
        },
        dense=((WIDTH, True), (DIMENSIONS, False)),
        activation=torch.nn.GELU,
        skiplist={"skiplist_words": ["the", ".", "!"], "skiplist_tasks": ["query", "document"]},
        encoder={"conv_bias": True, "num_key_value_heads": 2},
    ),
]


def build(name: str, folder: Path) -> Path:
    """Write the tiny checkpoint called ``name`` below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.lfm2_colbert.tests.tiny:save", name)
    return Path(shutil.copytree(cached / name, folder / name))


def save(folder: Path, name: str) -> None:
    """Save a tiny checkpoint below ``folder``, with the library."""
    tokenizer = colbert_builder.byte_level_tokenizer(
        [*TEXTS.values(), *PASSAGES],
        SPECIAL,
        "<|startoftext|> $A",
        unk_token="<|unknown|>",
        pad_token="<|pad|>",
        bos_token="<|startoftext|>",
        eos_token="<|im_end|>",
    )
    tiny = next(tiny for tiny in TINY if tiny.name == name)
    colbert_builder.save(folder, tiny, tokenizer, lambda size: transformers.Lfm2Model(_config(size, tiny)))


def _config(vocabulary: int, tiny: Tiny) -> transformers.Lfm2Config:
    # one head of keys for two of queries
    fields = {
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "block_multiple_of": 16,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": LAYERS,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return transformers.Lfm2Config(**{**fields, **tiny.encoder})
