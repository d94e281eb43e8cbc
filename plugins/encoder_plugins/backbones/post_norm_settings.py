"""The configurations and checkpoints of BERT and its relatives, as plain data: XLM-RoBERTa, DistilBERT and MPNet.

Standard library only: prep and the engine read them by this code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.activations import ACTIVATIONS
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields

# what transformers' DistilBertConfig assumes
DISTILBERT_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "distilbert",
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "activation": "gelu",
    }
)
DISTILBERT_ALIASES: Mapping[str, str] = MappingProxyType(
    {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
)
# what transformers' MPNetConfig assumes
MPNET_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "mpnet",
        "vocab_size": 30527,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
        "relative_attention_num_buckets": 32,
    }
)
# what transformers' BertConfig assumes, and its RobertaConfig and XLMRobertaConfig but for type and vocabulary
BERT_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "is_decoder": False,
    }
)
# the first position of a text: RoBERTa counts from behind the padding's id, which is 1
BERT_FIRST_POSITIONS: Mapping[str, int] = MappingProxyType({"bert": 0, "camembert": 2, "roberta": 2, "xlm-roberta": 2})
# transformers' MPNet computes these buckets, whatever its configuration says
MPNET_BUCKETS, MPNET_MAX_DISTANCE = 32, 128
# the first position of a text; the rows before are those of padding
MPNET_FIRST_POSITION = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        layers: Encoder layers.
        vocabulary: Rows of the vocabulary.
        positions: Rows of the absolute position table.
        first_position: The row of a text's first token.
        activation: Name of the feed-forward's activation.
        epsilon: Epsilon of all layer norms.
        buckets: Rows of the relative bias table; 0 for a model without one.
        max_distance: The distance from which on all share the last bucket.
        token_types: Rows of the token type table; 0 for a model without one. Every token of a text has type 0.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    first_position: int
    activation: str
    epsilon: float
    buckets: int
    max_distance: int
    token_types: int = 0

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest text that the position table has rows for."""
        return self.positions - self.first_position


def read_bert(config: Any) -> Settings:
    """Read a ``BertConfig`` or an ``XLMRobertaConfig``, or the object of its ``config.json``.

    Raises:
        UnsupportedConfig: A field has a value that is not supported, or that no model can have.
    """
    fields = ConfigFields(config, BERT_DEFAULTS)
    first_position = BERT_FIRST_POSITIONS[fields.choice("model_type", tuple(BERT_FIRST_POSITIONS))]
    fields.divided("hidden_size", "num_attention_heads")
    fields.choice("position_embedding_type", ("absolute", None))
    fields.choice("is_decoder", (False,))
    if first_position and fields.get("pad_token_id", 1) != first_position - 1:
        raise fields.refuse("pad_token_id", f"positions are counted from {first_position}")
    return Settings(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        heads=fields.integer("num_attention_heads"),
        layers=fields.integer("num_hidden_layers"),
        vocabulary=fields.integer("vocab_size"),
        positions=fields.integer("max_position_embeddings", least=first_position + 1),
        first_position=first_position,
        activation=fields.choice("hidden_act", ACTIVATIONS),
        epsilon=fields.epsilon("layer_norm_eps"),
        buckets=0,
        max_distance=0,
        token_types=fields.integer("type_vocab_size"),
    )


class BertSettings(Settings):
    """A BERT, RoBERTa or XLM-RoBERTa configuration."""

    __slots__ = ()

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read it; see ``read_bert``."""
        return read_bert(config)


def read_distilbert(config: Any) -> Settings:
    """Read a ``DistilBertConfig``, or the object of its ``config.json``.

    Raises:
        UnsupportedConfig: A field has a value that is not supported, or that no model can have.
    """
    fields = ConfigFields(config, DISTILBERT_DEFAULTS, DISTILBERT_ALIASES)
    fields.choice("model_type", ("distilbert",))
    fields.divided("dim", "n_heads")
    return Settings(
        hidden_size=fields.integer("dim"),
        intermediate_size=fields.integer("hidden_dim"),
        heads=fields.integer("n_heads"),
        layers=fields.integer("n_layers"),
        vocabulary=fields.integer("vocab_size"),
        positions=fields.integer("max_position_embeddings"),
        first_position=0,
        activation=fields.choice("activation", ACTIVATIONS),
        epsilon=1e-12,
        buckets=0,
        max_distance=0,
    )


def read_mpnet(config: Any) -> Settings:
    """Read an ``MPNetConfig``, or the object of its ``config.json``.

    Raises:
        UnsupportedConfig: A field has a value that is not supported, or that no model can have.
    """
    fields = ConfigFields(config, MPNET_DEFAULTS)
    fields.choice("model_type", ("mpnet",))
    fields.divided("hidden_size", "num_attention_heads")
    fields.choice("relative_attention_num_buckets", (MPNET_BUCKETS,))
    return Settings(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        heads=fields.integer("num_attention_heads"),
        layers=fields.integer("num_hidden_layers"),
        vocabulary=fields.integer("vocab_size"),
        positions=fields.integer("max_position_embeddings", least=MPNET_FIRST_POSITION + 1),
        first_position=MPNET_FIRST_POSITION,
        activation=fields.choice("hidden_act", ACTIVATIONS),
        epsilon=fields.epsilon("layer_norm_eps"),
        buckets=MPNET_BUCKETS,
        max_distance=MPNET_MAX_DISTANCE,
    )


# modules of a layer, by their names in transformers: DistilBERT's below "transformer.layer.N.", the others' below "encoder.layer.N."
_DISTILBERT = {
    "attention.q_lin": ParameterSlot("qkv_proj", "q"),
    "attention.k_lin": ParameterSlot("qkv_proj", "k"),
    "attention.v_lin": ParameterSlot("qkv_proj", "v"),
    "attention.out_lin": ParameterSlot("dense"),
    "sa_layer_norm": ParameterSlot("attention_norm"),
    "ffn.lin1": ParameterSlot("intermediate"),
    "ffn.lin2": ParameterSlot("output"),
    "output_layer_norm": ParameterSlot("output_norm"),
}
_BERT = {
    "attention.self.query": ParameterSlot("qkv_proj", "q"),
    "attention.self.key": ParameterSlot("qkv_proj", "k"),
    "attention.self.value": ParameterSlot("qkv_proj", "v"),
    "attention.output.dense": ParameterSlot("dense"),
    "attention.output.LayerNorm": ParameterSlot("attention_norm"),
    "intermediate.dense": ParameterSlot("intermediate"),
    "output.dense": ParameterSlot("output"),
    "output.LayerNorm": ParameterSlot("output_norm"),
}
_MPNET = {
    "attention.attn.q": ParameterSlot("qkv_proj", "q"),
    "attention.attn.k": ParameterSlot("qkv_proj", "k"),
    "attention.attn.v": ParameterSlot("qkv_proj", "v"),
    "attention.attn.o": ParameterSlot("dense"),
    "attention.LayerNorm": ParameterSlot("attention_norm"),
    "intermediate.dense": ParameterSlot("intermediate"),
    "output.dense": ParameterSlot("output"),
    "output.LayerNorm": ParameterSlot("output_norm"),
}


# what checkpoints of BERT's and MPNet's classes hold beside the encoder
_BESIDE = {
    "embeddings.position_ids": "a buffer that counts from 0, saved by transformers before 4.31",
    "pooler.dense.weight": "of pretraining; sentence-transformers pools the encoder's rows",
    "pooler.dense.bias": "of pretraining; sentence-transformers pools the encoder's rows",
}


def bert_layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``BertModel``, ``RobertaModel`` and ``XLMRobertaModel``; raises UnsupportedConfig as ``read_bert`` does."""
    return CheckpointLayout(shapes=_shapes(read_bert(config), "encoder.layer", _BERT), slot=bert_slot, ignored=_BESIDE)


def distilbert_layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``DistilBertModel``; raises UnsupportedConfig as ``read_distilbert`` does."""
    return CheckpointLayout(
        shapes=_shapes(read_distilbert(config), "transformer.layer", _DISTILBERT), slot=distilbert_slot
    )


def mpnet_layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``MPNetModel``; raises UnsupportedConfig as ``read_mpnet`` does."""
    return CheckpointLayout(
        shapes=_shapes(read_mpnet(config), "encoder.layer", _MPNET),
        slot=mpnet_slot,
        ignored=_BESIDE,
    )


def _shapes(settings: Settings, layers: str, modules: Mapping[str, ParameterSlot]) -> dict[str, Shape]:
    hidden, inner = settings.hidden_size, settings.intermediate_size
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (settings.vocabulary, hidden),
        "embeddings.position_embeddings.weight": (settings.positions, hidden),
        **norm("embeddings.LayerNorm", hidden),
    }
    if settings.token_types:
        shapes["embeddings.token_type_embeddings.weight"] = (settings.token_types, hidden)
    if settings.buckets:
        shapes["encoder.relative_attention_bias.weight"] = (settings.buckets, settings.heads)
    for index in range(settings.layers):
        for name, slot in modules.items():
            whole = f"{layers}.{index}.{name}"
            if slot.parameter.endswith("_norm"):
                shapes |= norm(whole, hidden)
            else:
                rows, columns = {"intermediate": (inner, hidden), "output": (hidden, inner)}.get(
                    slot.parameter, (hidden, hidden)
                )
                shapes |= linear(whole, rows, columns)
    return shapes


def bert_slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``BertModel`` or ``XLMRobertaModel``."""
    return _slot(name, "encoder.layer.", _BERT)


def distilbert_slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``DistilBertModel``."""
    return _slot(name, "transformer.layer.", _DISTILBERT)


def mpnet_slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``MPNetModel``."""
    if name == "encoder.relative_attention_bias.weight":
        return ParameterSlot("relative.embeddings.weight")
    return _slot(name, "encoder.layer.", _MPNET)


def _slot(name: str, layers: str, modules: Mapping[str, ParameterSlot]) -> ParameterSlot:
    if not name.startswith(layers):
        return ParameterSlot(name)
    index, _, rest = name.removeprefix(layers).partition(".")
    module, _, kind = rest.rpartition(".")
    target, part = modules[module]
    return ParameterSlot(f"layers.{index}.{target}.{kind}", part)
