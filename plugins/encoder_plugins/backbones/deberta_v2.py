"""DeBERTa v2 and v3 (He et al., 2021, arXiv 2006.03654 and 2111.09543), equal to transformers' ``DebertaV2Model``.

Positions enter through the attention's scores. The relative embeddings are projected by the layer's own query and key
weights (or by separate projections); the result depends on weights only, so it is computed once after loading.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

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
from encoder_plugins.backbones.adapter_tables import added
from encoder_plugins.backbones.attention import DisentangledAttention, PositionTables
from encoder_plugins.backbones.deberta_v2_settings import Settings
from encoder_plugins.backbones.elementwise import LayerNorm, activation


def position_index(settings: Settings) -> Tensor:
    """Return the relative table's row of each distance, int32."""
    if not settings.relative:
        return torch.zeros(1, dtype=torch.int32)
    if settings.buckets:
        return log_bucket_index(settings.buckets, settings.max_distance)
    return linear_index(settings.span)


class DebertaV2Embeddings(nn.Module):
    """Words, plus absolute positions and the first token type where the checkpoint has them."""

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
            "pos_key_proj",
            quant_config,
            prefix,
            wanted=own and settings.content_to_position,
            bias=settings.biased_keys,
        )
        self.pos_query_proj = self._projection(
            "pos_query_proj", quant_config, prefix, wanted=own and settings.position_to_content
        )
        self.attention = DisentangledAttention(
            settings.heads // get_tensor_model_parallel_world_size(),
            settings.head_size,
            1.0 / math.sqrt(settings.head_size * settings.terms),
            position_index=position_index(settings),
            # a function, so that the table does not become a submodule of every layer
            tables=lambda: self.position_tables(relative.rows()) if settings.relative else (None, None),
            changes=lambda slot: self.table_changes(relative.rows(), slot) if settings.relative else (None, None),
            prefix=f"{prefix}.attention",
        )
        self.dense = RowParallelLinear(
            settings.hidden_size, settings.hidden_size, quant_config=quant_config, prefix=f"{prefix}.dense"
        )
        self.LayerNorm = LayerNorm(settings.hidden_size, settings.epsilon)

    def _projection(
        self, name: str, quant_config: Any, prefix: str, *, wanted: bool, bias: bool = True
    ) -> ColumnParallelLinear | None:
        if not wanted:
            return None
        size = self.settings.hidden_size
        return ColumnParallelLinear(size, size, bias=bias, quant_config=quant_config, prefix=f"{prefix}.{name}")

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

    def table_changes(self, relative: Tensor, slot: int) -> PositionTables:
        """Return what the LoRA adapter in ``slot`` adds to ``position_tables``, float32."""
        shared = self.settings.share_keys
        key = (self.qkv_proj, 1) if shared else (self.pos_key_proj, 0)
        query = (self.qkv_proj, 0) if shared else (self.pos_query_proj, 0)
        return (
            added(*key, relative, slot) if self.settings.content_to_position else None,
            added(*query, relative, slot) if self.settings.position_to_content else None,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.qkv_proj(hidden)[0].chunk(3, dim=-1)  # [tokens, heads * head_size] each
        attended, _ = self.dense(self.attention(query, key, value))
        normed: Tensor = self.LayerNorm(attended, hidden)
        return normed


class DebertaV2Layer(nn.Module):
    """Attention and feed-forward, each followed by its norm."""

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
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out.

    Args:
        vllm_config: The engine's configuration.
        prefix: The encoder's name in the model.
        config: The encoder's own configuration; by default the engine's model's.

    Attributes:
        settings_class: What reads the configuration.
    """

    settings_class: ClassVar[type[Settings]] = Settings

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__()
        settings = self.settings_class.read(vllm_config.model_config.hf_config if config is None else config)
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
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        hidden: Tensor = self.embeddings(inputs_embeds, positions)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden
