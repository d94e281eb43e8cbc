"""DeBERTa v2 and v3 (He et al., 2021, arXiv 2006.03654 and 2111.09543), equal to transformers' ``DebertaV2Model``.

Words are added a position only through the attention's scores. The relative embeddings are projected by the layer's own
query and key weights (or by projections of their own), which depends on weights alone, so it is done once after loading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_kernels.disentangled_attention import linear_index, log_bucket_index
from encoder_plugins.backbones.attention import DisentangledAttention, PositionTables
from encoder_plugins.backbones.config_checks import SwitchError, refuse, require
from encoder_plugins.backbones.elementwise import ACTIVATIONS, LayerNorm, activation
from encoder_plugins.backbones.weight_loading import Layout, Place, Shape


@dataclass(frozen=True, slots=True)
class Settings:
    """A DeBERTa configuration, with what transformers fills in, and nothing that is not honoured.

    Attributes:
        hidden_size: Width of a token.
        embedding_size: Width of a row of the vocabulary.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        head_size: Width of a head.
        layers: Encoder layers.
        vocabulary: Rows of the vocabulary.
        positions: Rows of the absolute position table; 0 where there is none.
        token_types: Rows of the token type table, of which the first is used; 0 where there is none.
        activation: Name of the feed-forward's activation.
        epsilon: Of all layer norms.
        relative: Whether scores have position terms at all.
        content_to_position: Whether q_i meets the position keys.
        position_to_content: Whether k_j meets the position queries.
        terms: Terms that the scale counts; those named even if ``relative`` is off.
        share_keys: Whether the layer's own query and key weights project the relative embeddings.
        span: Half the rows of the relative table.
        buckets: Buckets of the logarithmic index; 0 for the linear one.
        max_distance: Where the logarithmic index ends.
        norm_relative: Whether the relative embeddings are layer-normed.
    """

    hidden_size: int
    embedding_size: int
    intermediate_size: int
    heads: int
    head_size: int
    layers: int
    vocabulary: int
    positions: int
    token_types: int
    activation: str
    epsilon: float
    relative: bool
    content_to_position: bool
    position_to_content: bool
    terms: int
    share_keys: bool
    span: int
    buckets: int
    max_distance: int
    norm_relative: bool

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``DebertaV2Config``.

        Raises:
            SwitchError: A switch has a value that would change the result, and is not honoured.
        """
        if getattr(config, "conv_kernel_size", 0) > 0:
            raise refuse(config, "conv_kernel_size", "the convolution beside the first layer is not there")
        if config.hidden_size % config.num_attention_heads:
            raise refuse(config, "num_attention_heads", f"it must divide hidden_size={config.hidden_size}")
        attention = _terms(config)
        # transformers takes this for a list of words between bars, and looks for one
        norm = [word.strip() for word in str(getattr(config, "norm_rel_ebd", "none")).lower().split("|")]
        if unknown := set(norm) - {"none", "layer_norm", ""}:
            raise refuse(config, "norm_rel_ebd", f"{sorted(unknown)} is not one of layer_norm, none")
        max_distance = getattr(config, "max_relative_positions", -1)
        if max_distance < 1:
            max_distance = config.max_position_embeddings
        buckets = max(getattr(config, "position_buckets", -1), 0)
        relative = bool(getattr(config, "relative_attention", False))
        return cls(
            hidden_size=config.hidden_size,
            embedding_size=getattr(config, "embedding_size", config.hidden_size),
            intermediate_size=config.intermediate_size,
            heads=config.num_attention_heads,
            head_size=getattr(config, "attention_head_size", config.hidden_size // config.num_attention_heads),
            layers=config.num_hidden_layers,
            vocabulary=config.vocab_size,
            positions=config.max_position_embeddings if getattr(config, "position_biased_input", True) else 0,
            token_types=config.type_vocab_size,
            activation=require(config, "hidden_act", ACTIVATIONS),
            epsilon=config.layer_norm_eps,
            relative=relative,
            content_to_position=relative and "c2p" in attention,
            position_to_content=relative and "p2c" in attention,
            terms=1 + len(attention),
            share_keys=bool(getattr(config, "share_att_key", False)),
            span=buckets or max_distance,
            buckets=buckets,
            max_distance=max_distance,
            norm_relative="layer_norm" in norm,
        )

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_size

    def position_index(self) -> Tensor:
        """Return the relative table's row of each distance, int32."""
        if not self.relative:
            return torch.zeros(1, dtype=torch.int32)
        if self.buckets:
            return log_bucket_index(self.buckets, self.max_distance)
        return linear_index(self.span)


def _terms(config: Any) -> set[str]:
    named = getattr(config, "pos_att_type", None) or []
    terms = {word.strip() for word in (named.split("|") if isinstance(named, str) else named)} - {""}
    if unknown := terms - {"c2p", "p2c"}:
        raise SwitchError(
            f"{config.model_type}: pos_att_type={named!r} is not supported: {sorted(unknown)} is not one of c2p, p2c"
        )
    return terms


class DebertaV2Embeddings(nn.Module):
    """Words, and where the checkpoint has them absolute positions and the first token type."""

    def __init__(self, settings: Settings, *, prefix: str) -> None:
        super().__init__()
        size = settings.embedding_size
        self.word_embeddings = VocabParallelEmbedding(settings.vocabulary, size, prefix=f"{prefix}.word_embeddings")
        self.position_embeddings = nn.Embedding(settings.positions, size) if settings.positions else None
        self.token_type_embeddings = nn.Embedding(settings.token_types, size) if settings.token_types else None
        self.embed_proj = (
            ReplicatedLinear(size, settings.hidden_size, bias=False, prefix=f"{prefix}.embed_proj")
            if size != settings.hidden_size
            else None
        )
        self.LayerNorm = LayerNorm(settings.hidden_size, settings.epsilon)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Turn `[tokens, embedding]` rows of the vocabulary into `[tokens, hidden]`."""
        if self.position_embeddings is not None:
            embeddings = embeddings + self.position_embeddings(positions)
        if self.token_type_embeddings is not None:
            embeddings = embeddings + self.token_type_embeddings.weight[0]
        if self.embed_proj is not None:
            embeddings, _ = self.embed_proj(embeddings)
        hidden: Tensor = self.LayerNorm(embeddings)
        return hidden


class DebertaV2Attention(nn.Module):
    """Disentangled self-attention with its output projection; the relative table belongs to the encoder."""

    def __init__(self, settings: Settings, relative: RelativeTable, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        self.settings = settings
        self.qkv_proj = QKVParallelLinear(
            settings.hidden_size,
            settings.head_size,
            settings.heads,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        own = settings.relative and not settings.share_keys
        self.pos_key_proj = self._projection(
            "pos_key_proj", quant_config, prefix, wanted=own and settings.content_to_position
        )
        self.pos_query_proj = self._projection(
            "pos_query_proj", quant_config, prefix, wanted=own and settings.position_to_content
        )
        self.attention = DisentangledAttention(
            settings.heads // get_tensor_model_parallel_world_size(),
            settings.head_size,
            1.0 / math.sqrt(settings.head_size * settings.terms),
            position_index=settings.position_index(),
            # a method, so that the table does not become a part of every layer
            tables=lambda: self.position_tables(relative.rows()) if settings.relative else (None, None),
            prefix=f"{prefix}.attention",
        )
        self.dense = RowParallelLinear(
            settings.width, settings.hidden_size, quant_config=quant_config, prefix=f"{prefix}.dense"
        )
        self.LayerNorm = LayerNorm(settings.hidden_size, settings.epsilon)

    def _projection(self, name: str, quant_config: Any, prefix: str, *, wanted: bool) -> ColumnParallelLinear | None:
        if not wanted:
            return None
        return ColumnParallelLinear(
            self.settings.hidden_size, self.settings.width, quant_config=quant_config, prefix=f"{prefix}.{name}"
        )

    def position_tables(self, relative: Tensor) -> PositionTables:
        """Project `[rows, hidden]` relative embeddings to position keys and queries of this rank's heads."""
        if self.settings.share_keys:
            query, key, _ = self.qkv_proj(relative)[0].chunk(3, dim=-1)
        else:
            key = self.pos_key_proj(relative)[0] if self.pos_key_proj is not None else None
            query = self.pos_query_proj(relative)[0] if self.pos_query_proj is not None else None
        return (
            key if self.settings.content_to_position else None,
            query if self.settings.position_to_content else None,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.qkv_proj(hidden)[0].chunk(3, dim=-1)  # [tokens, heads * head_size] each
        attended, _ = self.dense(self.attention(query, key, value))
        normed: Tensor = self.LayerNorm(attended, hidden)
        return normed


class DebertaV2Layer(nn.Module):
    """Attention and feed-forward, each with its norm behind."""

    def __init__(self, settings: Settings, relative: RelativeTable, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        self.attention = DebertaV2Attention(settings, relative, quant_config, prefix=f"{prefix}.attention")
        self.intermediate = ColumnParallelLinear(
            settings.hidden_size,
            settings.intermediate_size,
            quant_config=quant_config,
            prefix=f"{prefix}.intermediate",
        )
        self.activation = activation(settings.activation)
        self.output = RowParallelLinear(
            settings.intermediate_size, settings.hidden_size, quant_config=quant_config, prefix=f"{prefix}.output"
        )
        self.LayerNorm = LayerNorm(settings.hidden_size, settings.epsilon)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        hidden = self.attention(hidden)
        inner = self.activation(self.intermediate(hidden)[0])
        normed: Tensor = self.LayerNorm(self.output(inner)[0], hidden)
        return normed


class RelativeTable(nn.Module):
    """The relative embeddings, one row for each bucket."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(2 * settings.span, settings.hidden_size) if settings.relative else None
        self.LayerNorm = LayerNorm(settings.hidden_size, settings.epsilon) if settings.norm_relative else None

    def rows(self) -> Tensor:
        """Return `[2 * span, hidden]`."""
        if self.embeddings is None:
            raise RuntimeError("a model without relative attention has no relative embeddings")
        rows: Tensor = self.embeddings.weight
        return self.LayerNorm(rows) if self.LayerNorm is not None else rows


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class DebertaV2Encoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        settings = Settings.read(vllm_config.model_config.hf_config)
        quant_config = vllm_config.quant_config
        self.embeddings = DebertaV2Embeddings(settings, prefix=f"{prefix}.embeddings")
        self.relative = RelativeTable(settings)
        self.layers = nn.ModuleList(
            DebertaV2Layer(settings, self.relative, quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(settings.layers)
        )

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, embedding]`."""
        rows: Tensor = self.embeddings.word_embeddings(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; either of ``input_ids`` and ``inputs_embeds`` is there."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        hidden: Tensor = self.embeddings(inputs_embeds, positions)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def layout(config: Any) -> Layout:
    """Return what a checkpoint of transformers' ``DebertaV2Model`` holds."""
    settings = Settings.read(config)
    ignored = {"embeddings.position_ids": "a buffer that counts from 0, saved by transformers before 4.31"}
    if not settings.positions:
        ignored["embeddings.position_embeddings.weight"] = "of pretraining; position_biased_input is false"
    return Layout(shapes=_shapes(settings), place=place, ignored=ignored)


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, width, inner = settings.hidden_size, settings.width, settings.intermediate_size
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (settings.vocabulary, settings.embedding_size),
        **_norm("embeddings.LayerNorm", hidden),
    }
    if settings.positions:
        shapes["embeddings.position_embeddings.weight"] = (settings.positions, settings.embedding_size)
    if settings.token_types:
        shapes["embeddings.token_type_embeddings.weight"] = (settings.token_types, settings.embedding_size)
    if settings.embedding_size != hidden:
        shapes["embeddings.embed_proj.weight"] = (hidden, settings.embedding_size)
    if settings.relative:
        shapes["encoder.rel_embeddings.weight"] = (2 * settings.span, hidden)
    if settings.norm_relative:
        shapes |= _norm("encoder.LayerNorm", hidden)
    projections = ["query_proj", "key_proj", "value_proj"]
    if settings.relative and not settings.share_keys:
        projections += ["pos_key_proj"] * settings.content_to_position
        projections += ["pos_query_proj"] * settings.position_to_content
    for index in range(settings.layers):
        layer = f"encoder.layer.{index}"
        for name in projections:
            shapes |= _linear(f"{layer}.attention.self.{name}", width, hidden)
        shapes |= _linear(f"{layer}.attention.output.dense", hidden, width)
        shapes |= _norm(f"{layer}.attention.output.LayerNorm", hidden)
        shapes |= _linear(f"{layer}.intermediate.dense", inner, hidden)
        shapes |= _linear(f"{layer}.output.dense", hidden, inner)
        shapes |= _norm(f"{layer}.output.LayerNorm", hidden)
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, Shape]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, size: int) -> dict[str, Shape]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


# below "encoder.layer.N."
_LAYER = {
    "attention.self.query_proj": Place("attention.qkv_proj", "q"),
    "attention.self.key_proj": Place("attention.qkv_proj", "k"),
    "attention.self.value_proj": Place("attention.qkv_proj", "v"),
    "attention.self.pos_key_proj": Place("attention.pos_key_proj"),
    "attention.self.pos_query_proj": Place("attention.pos_query_proj"),
    "attention.output.dense": Place("attention.dense"),
    "attention.output.LayerNorm": Place("attention.LayerNorm"),
    "intermediate.dense": Place("intermediate"),
    "output.dense": Place("output"),
    "output.LayerNorm": Place("LayerNorm"),
}


def place(name: str) -> Place:
    """Return where the tensor ``name`` of transformers' ``DebertaV2Model`` goes."""
    if name.startswith("encoder.layer."):
        _, _, index, rest = name.split(".", 3)
        module, _, kind = rest.rpartition(".")
        target, part = _LAYER[module]
        return Place(f"layers.{index}.{target}.{kind}", part)
    name = name.replace("encoder.rel_embeddings.", "relative.embeddings.")
    return Place(name.replace("encoder.LayerNorm.", "relative.LayerNorm."))
