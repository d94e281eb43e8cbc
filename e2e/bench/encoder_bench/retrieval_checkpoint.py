"""Checkpoints of retrievers at true shapes with random weights, as users publish them: what the comparisons measure.

Written with transformers alone, so that it needs neither a network nor a library of retrieval. The tokenizers are of the
true types, and have learned English from the interpreter's documentation, from which the texts are taken.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from encoder_checkpoints import colbert_builder, vocabularies
from encoder_checkpoints.colbert_builder import PREFIXES

# pieces that tokenizers learn: about as many tokens in a word as those of published checkpoints have
PIECES = 12_000
DIMENSIONS = 128
QUERY_TOKENS = 32

# transformers has no types
Config: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the checkpoints of a plugin are made of.

    Attributes:
        shapes: The encoder's configuration by the name of a shape; `tiny` shows that a comparison runs.
        tokenizer: Trains the tokenizer for an embedding of so many rows.
        architecture: What vLLM calls its own class for the same checkpoint; None where it has none that reads the format.
        most_tokens: Tokens of the longest text, where the encoder's positions do not decide.
        pooled: Whether there is one vector for each text, rather than one for each token.
        around: Tokens that are put around a text: special ones and a prefix, or a prompt.
        query_prompt: What one of a vector for each text puts before queries.
        document_prompt: What it puts before documents.
        dense: Whether it has Dense modules.
    """

    shapes: Mapping[str, Config]
    tokenizer: Callable[[int], PreTrainedTokenizerFast]
    architecture: str | None
    most_tokens: int
    pooled: bool = False
    around: int = 4
    query_prompt: str = ""
    document_prompt: str = ""
    dense: bool = False


def _modernbert_tokenizer(size: int) -> PreTrainedTokenizerFast:
    return colbert_builder.byte_level_tokenizer(
        topics.values(),
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        "[CLS] $A [SEP]",
        vocabulary=min(PIECES, size - 2),
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _lfm2_tokenizer(size: int) -> PreTrainedTokenizerFast:
    return colbert_builder.byte_level_tokenizer(
        topics.values(),
        ["<|pad|>", "<|unknown|>", "<|startoftext|>", "<|im_end|>"],
        "<|startoftext|> $A",
        vocabulary=min(PIECES, size - 2),
        unk_token="<|unknown|>",
        pad_token="<|pad|>",
        bos_token="<|startoftext|>",
        eos_token="<|im_end|>",
    )


def _bert_tokenizer(size: int) -> PreTrainedTokenizerFast:
    pieces = min(PIECES, size - 2)
    return colbert_builder.word_piece_tokenizer(topics.values(), vocabulary=pieces, prefixes=PREFIXES)


def _gemma_tokenizer(size: int) -> PreTrainedTokenizerFast:
    tokenizer, about = vocabularies.mmbert(size)
    named = {
        name: token for name, token in about.items() if name in ("bos_token", "eos_token", "pad_token", "unk_token")
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def _modernbert(**shape: Any) -> Config:
    ids = {"pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
    return transformers.ModernBertConfig(max_position_embeddings=8192, **ids, **shape)


def _lfm2(**shape: Any) -> Config:
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    # published files have these, which vLLM's own class reads and transformers no longer writes
    old = {
        "block_dim": shape["hidden_size"],
        "conv_dim": shape["hidden_size"],
        "block_ff_dim": shape["intermediate_size"],
    }
    return transformers.Lfm2Config(max_position_embeddings=128_000, **ids, **shape, **old)


def _gemma(**shape: Any) -> Config:
    return transformers.Gemma3TextConfig(
        head_dim=256,
        query_pre_attn_scalar=256,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        sliding_window=512,
        use_bidirectional_attention=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        **shape,
    )


def _lfm2_layers(attention: tuple[int, ...], count: int) -> list[str]:
    return ["full_attention" if layer in attention else "conv" for layer in range(count)]


_TINY = {"vocab_size": 4000, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "moderncolbert": Kind(
            shapes={
                "tiny": _modernbert(**_TINY, num_hidden_layers=3, local_attention=128),
                "base": _modernbert(vocab_size=50_370),
            },
            tokenizer=_modernbert_tokenizer,
            architecture="ColBERTModernBertModel",
            most_tokens=8192,
        ),
        "lfm2_colbert": Kind(
            shapes={
                "tiny": _lfm2(**_TINY, num_hidden_layers=3, num_key_value_heads=1, layer_types=_lfm2_layers((1,), 3)),
                "350m": _lfm2(
                    vocab_size=65_536,
                    hidden_size=1024,
                    intermediate_size=6656,
                    num_hidden_layers=16,
                    num_attention_heads=16,
                    num_key_value_heads=8,
                    layer_types=_lfm2_layers((2, 5, 8, 10, 12, 14), 16),
                ),
            },
            tokenizer=_lfm2_tokenizer,
            architecture="ColBERTLfm2Model",
            most_tokens=8192,
        ),
        "colbert": Kind(
            shapes={
                "tiny": transformers.BertConfig(**_TINY, num_hidden_layers=3),
                "base": transformers.BertConfig(),
            },
            tokenizer=_bert_tokenizer,
            # vLLM's class for BERT reads Stanford's format only
            architecture=None,
            most_tokens=512,
        ),
        "embeddinggemma": Kind(
            shapes={
                "tiny": _gemma(
                    vocab_size=4000, hidden_size=64, num_attention_heads=2, intermediate_size=96, num_hidden_layers=6
                ),
                "300m": _gemma(
                    vocab_size=262_144,
                    hidden_size=768,
                    num_attention_heads=3,
                    intermediate_size=1152,
                    num_hidden_layers=24,
                ),
            },
            tokenizer=_gemma_tokenizer,
            architecture="Gemma3TextModel",
            most_tokens=2048,
            pooled=True,
            around=16,
            query_prompt="task: search result | query: ",
            document_prompt="title: none | text: ",
            dense=True,
        ),
        # BERT as BGE and E5 are published, and as MiniLM
        "sentence_transformer": Kind(
            shapes={
                "tiny": transformers.BertConfig(**_TINY, num_hidden_layers=3),
                "minilm": transformers.BertConfig(hidden_size=384, intermediate_size=1536, num_hidden_layers=6),
                "base": transformers.BertConfig(),
            },
            tokenizer=_bert_tokenizer,
            architecture="BertModel",
            most_tokens=512,
            pooled=True,
        ),
    }
)


def build(folder: Path, plugin: str, shape: str) -> Path:
    """Write a checkpoint into ``folder``, which need not exist; return it.

    Raises:
        ValueError: The plugin has no such shape.
    """
    kind = KINDS[plugin]
    if shape not in kind.shapes:
        raise ValueError(f"{plugin} has the shapes {', '.join(kind.shapes)}, and not {shape}")
    config = kind.shapes[shape]
    torch.manual_seed(7)
    # bfloat16 is what published ones have, and takes half of the time and the disk
    model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    kind.tokenizer(config.vocab_size).save_pretrained(folder)
    (_as_sentence_transformer if kind.pooled else _as_pylate)(folder, config.hidden_size, kind)
    return folder


def _as_pylate(folder: Path, width: int, kind: Kind) -> None:
    """Add what PyLate saves beside the encoder; sentence-transformers 6.2 reads it, too."""
    _write(folder, "sentence_bert_config.json", {"max_seq_length": kind.most_tokens, "do_lower_case": False})
    _dense(folder / "1_Dense", width, DIMENSIONS, {"use_residual": False})
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    _modules(folder, kinds)
    _write(
        folder,
        "config_sentence_transformers.json",
        {
            "model_type": "ColBERT",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": PREFIXES[0],
            "document_prefix": PREFIXES[1],
            "query_length": QUERY_TOKENS,
            "document_length": kind.most_tokens,
            "attend_to_expansion_tokens": False,
            "skiplist_words": list(string.punctuation),
            "do_query_expansion": True,
        },
    )


def _as_sentence_transformer(folder: Path, width: int, kind: Kind) -> None:
    """Add what sentence-transformers saves beside an encoder of one vector for each text."""
    _write(folder, "sentence_bert_config.json", {"max_seq_length": kind.most_tokens, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True, "include_prompt": True}
    _write(folder, "1_Pooling/config.json", pooling)
    names = {"": "Transformer", "1_Pooling": "Pooling"}
    if kind.dense:
        _dense(folder / "2_Dense", width, 4 * width)
        _dense(folder / "3_Dense", 4 * width, width)
        names |= {"2_Dense": "Dense", "3_Dense": "Dense"}
    names[f"{len(names)}_Normalize"] = "Normalize"
    _modules(folder, {path: f"sentence_transformers.models.{name}" for path, name in names.items()})
    prompts = {"query": kind.query_prompt, "document": kind.document_prompt}
    about = {"model_type": "SentenceTransformer", "prompts": prompts, "default_prompt_name": None}
    _write(folder, "config_sentence_transformers.json", {**about, "similarity_fn_name": "cosine"})


def _modules(folder: Path, kinds: Mapping[str, str]) -> None:
    described = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    _write(folder, "modules.json", described)


def _dense(folder: Path, inputs: int, outputs: int, more: Mapping[str, Any] | None = None) -> None:
    folder.mkdir()
    identity = "torch.nn.modules.linear.Identity"
    about = {"in_features": inputs, "out_features": outputs, "bias": False, "activation_function": identity}
    _write(folder, "config.json", {**about, **(more or {})})
    weight = torch.randn(outputs, inputs) * inputs**-0.5
    save_file({"linear.weight": weight}, folder / "model.safetensors", metadata={"format": "pt"})


def _write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value, indent=2), encoding="utf-8")
