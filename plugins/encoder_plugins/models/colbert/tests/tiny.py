"""Tiny ColBERT checkpoints on BERT and XLM-RoBERTa with random weights, one for each form that users publish.

``save`` runs in the environment of sentence-transformers; ``build`` is for everybody else.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import transformers

from encoder_checkpoints import colbert_builder
from encoder_checkpoints.colbert_builder import DIMENSIONS, POSITIONS, PREFIXES, WIDTH, Tiny
from encoder_plugins.families.retrieval.cases import PASSAGES, TEXTS

MARKERS = ("[unused0]", "[unused1]")
# the fields of artifact.metadata that the library reads, and some of those that it does not
STANFORD = {
    "query_token_id": MARKERS[0],
    "doc_token_id": MARKERS[1],
    "query_token": "[Q]",
    "doc_token": "[D]",
    "attend_to_mask_tokens": False,
    "similarity": "cosine",
    "dim": DIMENSIONS,
    "query_maxlen": 32,
    "doc_maxlen": 64,
    "mask_punctuation": True,
}
XLM_ROBERTA = "xlm-roberta"

# those with the most tokens come first: an engine that tests share refuses ids beyond those of its first model
TINY = [
    Tiny(
        name=XLM_ROBERTA,
        transformer={"query_expansion": {"strategy": "min", "length": 20, "attend": False}, "query_length": 64},
        skiplist={"skiplist_words": [".", "!", "?"]},
    ),
    Tiny(
        name="pylate",
        pylate={"query_length": 24, "document_length": 48},
        masked=True,
        prompts={"query": "search query: ", "fact": "a fact:\n"},
    ),
    Tiny(name="stanford", stanford=STANFORD),
    # without a length for documents that of the encoder holds
    Tiny(
        name="stanford-attend",
        stanford={"attend_to_mask_tokens": True, "mask_punctuation": False, "query_maxlen": 24, "doc_maxlen": None},
    ),
]


def build(name: str, folder: Path) -> Path:
    """Write the tiny checkpoint called ``name`` below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sentence_transformers", "encoder_plugins.models.colbert.tests.tiny:save", name)
    return Path(shutil.copytree(cached / name, folder / name))


def save(folder: Path, name: str) -> None:
    """Save a tiny checkpoint below ``folder``, with the library."""
    tiny = next(tiny for tiny in TINY if tiny.name == name)
    texts = [*TEXTS.values(), *PASSAGES]
    if name == XLM_ROBERTA:
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer = colbert_builder.byte_level_tokenizer(
            texts,
            specials,
            "<s> $A </s>",
            unk_token="<unk>",
            pad_token="<pad>",
            cls_token="<s>",
            bos_token="<s>",
            sep_token="</s>",
            eos_token="</s>",
            mask_token="<mask>",
        )
        # as published: the library would take as many tokens as the table of positions has rows, which is 2 too many
        tokenizer.model_max_length = POSITIONS
        colbert_builder.save(folder, tiny, tokenizer, xlm_roberta)
        return
    added = PREFIXES if tiny.pylate is not None else ()
    prefixes = PREFIXES if tiny.pylate is not None else (f"{MARKERS[0]} ", f"{MARKERS[1]} ")
    tokenizer = colbert_builder.word_piece_tokenizer(texts, prefixes=added)
    colbert_builder.save(folder, tiny, tokenizer, bert, prefixes=prefixes)


# heads of 32 are the smallest that vLLM's CPU attention has
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 96,
}


def bert(vocabulary: int) -> transformers.BertModel:
    """Build BERT for a number of tokens."""
    config = transformers.BertConfig(vocab_size=vocabulary, **SIZES, max_position_embeddings=POSITIONS)
    return transformers.BertModel(config)


def xlm_roberta(vocabulary: int) -> transformers.XLMRobertaModel:
    """Build XLM-RoBERTa for a number of tokens; its positions begin at 2."""
    config = transformers.XLMRobertaConfig(
        vocab_size=vocabulary, **SIZES, max_position_embeddings=POSITIONS + 2, type_vocab_size=1, layer_norm_eps=1e-5
    )
    return transformers.XLMRobertaModel(config)
