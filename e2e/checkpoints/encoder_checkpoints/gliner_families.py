"""What the GLiNER checkpoints of each plugin have in common, and their sizes: plain data for ``gliner_builder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer

from encoder_checkpoints import vocabularies

# the tokenizer of labels has fewer entries, so that it cannot be taken for the other one
LABEL_ENTRIES_LESS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a checkpoint.

    Attributes:
        encoder: The encoder's configuration, but for what its kind fixes.
        vocabulary: Entries of the tokenizer, before GLiNER's tokens.
        rows: Rows of the embedding; 0 for as many as the tokenizer has entries.
        hidden_size: GLiNER's own width.
        max_width: Words of the longest span.
        max_words: Words taken of a text.
        labels: What the encoder of labels has differently from its family's, where there is one.
        share: How many of all pairs of span and label have a score above 0.5; token-level models have `WORD_SHARES`.
    """

    encoder: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int
    rows: int = 0
    hidden_size: int = 512
    max_width: int = 12
    max_words: int = 384
    labels: Mapping[str, Any] = field(default_factory=dict)
    share: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The encoder that labels have in the checkpoints of a family.

    Attributes:
        encoder: The fixed part of its configuration; none where it is the texts' one.
        tokenizer: Trains its tokenizer.
    """

    encoder: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Callable[[int], tuple[Tokenizer, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the checkpoints of a plugin have in common.

    Attributes:
        base: The repository whose encoder it was trained from, as gliner_config.json names it.
        encoder: The fixed part of the encoder's configuration.
        tokenizer: Trains its tokenizer.
        added: Tokens that GLiNER adds, in order.
        shapes: Sizes by name; `tiny` is for every day, the others are true ones.
        head: Fields of gliner_config.json that choose the head; none for spans.
        labels: The encoder of labels, where there is one.
    """

    base: str
    encoder: Mapping[str, Any]
    tokenizer: Callable[[int], tuple[Tokenizer, dict[str, Any]]]
    added: tuple[str, ...]
    shapes: Mapping[str, Shape]
    head: Mapping[str, Any] = field(default_factory=dict)
    labels: Labels | None = None


def _tiny(*, labels: Mapping[str, Any] = MappingProxyType({}), **encoder: Any) -> Shape:
    return Shape(
        encoder=encoder, vocabulary=2000, hidden_size=64, max_width=6, max_words=120, labels=labels, share=0.05
    )


# the encoder of labels of the published span bi-encoders: MiniLM or bge
_BERT = Labels(
    encoder={
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    tokenizer=vocabularies.bert,
)
# few positions, so that labels reach the last one
_TINY_BERT = {
    "hidden_size": 96,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 112,
    "max_position_embeddings": 40,
}
_DEBERTA_V3 = {
    "model_type": "deberta-v2",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}
_MODERNBERT = {
    "model_type": "modernbert",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "hidden_activation": "gelu",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 160_000.0,
    "local_attention": 128,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 1,
    "sep_token_id": 1,
}


_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "deberta_gliner": Family(
            base="example/deberta-v3",
            encoder=_DEBERTA_V3,
            tokenizer=vocabularies.deberta,
            added=("[FLERT]", "<<ENT>>", "<<SEP>>"),
            shapes={
                # buckets of 32, so that short texts reach the logarithmic ones
                "tiny": _tiny(
                    hidden_size=96,
                    num_attention_heads=3,
                    num_hidden_layers=3,
                    intermediate_size=160,
                    position_buckets=32,
                    max_position_embeddings=128,
                ),
                "small": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 6,
                        "intermediate_size": 3072,
                    },
                    vocabulary=128_001,
                ),
                "large": Shape(
                    encoder={
                        "hidden_size": 1024,
                        "num_attention_heads": 16,
                        "num_hidden_layers": 24,
                        "intermediate_size": 4096,
                    },
                    vocabulary=128_001,
                ),
            },
        ),
        "deberta_gliner_linker": Family(
            base="example/deberta",
            encoder={
                "model_type": "deberta",
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-7,
                "max_position_embeddings": 512,
                "max_relative_positions": -1,
                "pos_att_type": ["c2p", "p2c"],
                "position_biased_input": False,
                "relative_attention": True,
                "type_vocab_size": 0,
                "pad_token_id": 0,
            },
            tokenizer=vocabularies.deberta_v1,
            added=(),
            shapes={
                # few distances, so that short texts reach beyond them
                "tiny": Shape(
                    encoder={
                        "hidden_size": 96,
                        "num_attention_heads": 3,
                        "num_hidden_layers": 3,
                        "intermediate_size": 160,
                        "max_relative_positions": 24,
                    },
                    vocabulary=2000,
                    hidden_size=96,
                    max_width=6,
                    max_words=120,
                    # of other sizes, so that no part can be taken for the other encoder's
                    labels={
                        "hidden_size": 64,
                        "num_attention_heads": 2,
                        "num_hidden_layers": 2,
                        "max_relative_positions": 8,
                    },
                ),
                "large": Shape(
                    encoder={
                        "hidden_size": 1024,
                        "num_attention_heads": 16,
                        "num_hidden_layers": 24,
                        "intermediate_size": 4096,
                    },
                    vocabulary=50_265,
                    hidden_size=768,
                    max_width=100,
                    max_words=512,
                ),
            },
            head={"span_mode": "token_level"},
            labels=Labels(tokenizer=vocabularies.deberta_v1),
        ),
        "mmbert_gliner": Family(
            base="example/mmbert",
            encoder=_MODERNBERT,
            tokenizer=vocabularies.mmbert,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                # windows of 32, so that short texts reach beyond them
                "tiny": _tiny(
                    hidden_size=64,
                    num_attention_heads=2,
                    num_hidden_layers=3,
                    intermediate_size=96,
                    local_attention=32,
                    max_position_embeddings=2048,
                    global_attn_every_n_layers=2,
                ),
                "base": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 22,
                        "intermediate_size": 1152,
                    },
                    vocabulary=256_000,
                    hidden_size=768,
                    max_words=2048,
                ),
            },
        ),
        "modernbert_gliner_rerank": Family(
            base="example/ettin",
            encoder=_MODERNBERT,
            tokenizer=vocabularies.mmbert,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                # windows of 32, so that short texts reach beyond them
                "tiny": _tiny(
                    hidden_size=96,
                    num_attention_heads=3,
                    num_hidden_layers=3,
                    intermediate_size=96,
                    local_attention=32,
                    max_position_embeddings=2048,
                    global_attn_every_n_layers=2,
                ),
                "small": Shape(
                    encoder={
                        "hidden_size": 512,
                        "num_attention_heads": 8,
                        "num_hidden_layers": 19,
                        "intermediate_size": 768,
                    },
                    vocabulary=50_368,
                    hidden_size=768,
                    max_words=2048,
                ),
            },
            head={"span_mode": "token_level"},
        ),
        "gliner_bi_modernbert": Family(
            base="example/ettin",
            encoder=_MODERNBERT,
            tokenizer=vocabularies.mmbert,
            added=(),
            shapes={
                "tiny": _tiny(
                    hidden_size=96,
                    num_attention_heads=3,
                    num_hidden_layers=3,
                    intermediate_size=96,
                    local_attention=32,
                    max_position_embeddings=2048,
                    global_attn_every_n_layers=2,
                    labels=_TINY_BERT,
                ),
                # gliner-bi-base-v2.0: ettin-encoder-150m and bge-small
                "base": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 22,
                        "intermediate_size": 1152,
                    },
                    vocabulary=50_368,
                    max_words=2048,
                    labels={
                        "hidden_size": 384,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 12,
                        "intermediate_size": 1536,
                    },
                ),
            },
            labels=_BERT,
        ),
        "gliner_bi_deberta": Family(
            base="example/deberta-v3",
            encoder=_DEBERTA_V3,
            tokenizer=vocabularies.deberta,
            added=(),
            shapes={
                "tiny": _tiny(
                    hidden_size=64,
                    num_attention_heads=2,
                    num_hidden_layers=3,
                    intermediate_size=160,
                    position_buckets=32,
                    max_position_embeddings=128,
                    labels=_TINY_BERT,
                ),
                # gliner-bi-small-v1.0: deberta-v3-small and MiniLM-L6
                "small": Shape(
                    encoder={
                        "hidden_size": 768,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 6,
                        "intermediate_size": 3072,
                    },
                    vocabulary=128_001,
                    labels={
                        "hidden_size": 384,
                        "num_attention_heads": 12,
                        "num_hidden_layers": 6,
                        "intermediate_size": 1536,
                    },
                ),
            },
            labels=_BERT,
        ),
        "mt5_gliner": Family(
            base="example/mt5",
            encoder={
                "model_type": "mt5",
                "feed_forward_proj": "gated-gelu",
                "layer_norm_epsilon": 1e-6,
                "relative_attention_max_distance": 128,
                "relative_attention_num_buckets": 32,
                "tie_word_embeddings": False,
                "num_decoder_layers": 0,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "decoder_start_token_id": 0,
            },
            tokenizer=vocabularies.mt5,
            added=("<<ENT>>", "<<SEP>>"),
            shapes={
                "tiny": _tiny(d_model=64, num_heads=4, d_kv=32, num_layers=2, d_ff=96),
                "xl": Shape(
                    encoder={"d_model": 1024, "num_heads": 16, "d_kv": 64, "num_layers": 24, "d_ff": 2816},
                    vocabulary=250_100,
                    rows=250_112,
                    hidden_size=1024,
                    max_words=1024,
                ),
            },
        ),
    }
)

# token-level families whose words only propose spans
_PROPOSING = {"gliner_linker_spans": "deberta_gliner_linker", "gliner_rerank_spans": "modernbert_gliner_rerank"}
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        **_FAMILIES,
        **{
            name: replace(_FAMILIES[family], head={**_FAMILIES[family].head, "represent_spans": True})
            for name, family in _PROPOSING.items()
        },
    }
)
