"""Encoder attention behind vLLM's own extension point: attention layers whose backend, or whose kernel, is ours.

vLLM provides the offsets of the packed sequences (without a copy from the device), the split of a compiled model at each
attention (so the rest runs as CUDA graphs), and both of its model runners. Ours are the kernels of ``encoder_kernels``
and the position tables that they read, which are computed once after loading.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)

from encoder_kernels.disentangled_attention import disentangled_attention
from encoder_kernels.relative_bias_attention import relative_bias_attention

# the kernels are compiled for short and for long sequences
WARM_UP_TOKENS = (32, 1024)


@dataclass(frozen=True, slots=True)
class VarlenMetadata(AttentionMetadata):  # type: ignore[misc]
    """The sequences of a packed batch.

    Attributes:
        cu_seqlens: `[sequences + 1]` int32 on the device: the first token of each sequence, and the end of the last.
        max_seqlen: Tokens of the longest sequence.
        tokens: Tokens of all sequences. Rows behind them are padding for a CUDA graph.
        key_lengths: `[sequences]` int32 on the device: how many of each sequence's first tokens are keys; None for all.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    tokens: int
    key_lengths: Tensor | None = None


class VarlenMetadataBuilder(AttentionMetadataBuilder[VarlenMetadata]):  # type: ignore[misc]
    """Builds the metadata from what vLLM's model runner has; everything is on the host already or stays on the device."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> VarlenMetadata:
        """Return the metadata of one batch, shared by all layers."""
        del common_prefix_len, fast_build
        sequences = common_attn_metadata.num_reqs
        return VarlenMetadata(
            cu_seqlens=common_attn_metadata.query_start_loc[: sequences + 1],
            max_seqlen=int(common_attn_metadata.max_query_len),
            tokens=int(common_attn_metadata.query_start_loc_cpu[sequences]),
        )


class EncoderBackend(AttentionBackend):  # type: ignore[misc]
    """The properties of our attention: no cache, any float type, encoders only."""

    supported_dtypes = [torch.float32, torch.float16, torch.bfloat16]  # noqa: RUF012 (vLLM's own class variable)

    @staticmethod
    def get_name() -> str:
        """Return vLLM's name for a backend from outside."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[EncoderImpl]:
        """Return the class that calls the kernel."""
        return EncoderImpl

    @staticmethod
    def get_builder_cls() -> type[VarlenMetadataBuilder]:
        """Return the class that builds the metadata of a batch."""
        return VarlenMetadataBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Return whether ``attn_type`` is that of encoders."""
        return bool(attn_type == AttentionType.ENCODER_ONLY)


class EncoderImpl(AttentionImpl[VarlenMetadata]):  # type: ignore[misc]
    """Runs the layer's kernel over the sequences of a batch."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.ENCODER_ONLY,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        given = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
        }
        if unknown := {name: value for name, value in given.items() if value is not None}:
            raise ValueError(f"encoder attention does not support {', '.join(unknown)}; got {unknown}")
        key_heads = num_heads if num_kv_heads is None else num_kv_heads
        if attn_type != AttentionType.ENCODER_ONLY or num_heads % key_heads:
            raise ValueError(
                "encoder attention is for encoders whose key heads divide the query heads; "
                f"got attn_type={attn_type!r}, num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        self.num_heads = num_heads
        self.num_kv_heads = key_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype

    def forward(
        self,
        layer: EncoderAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: VarlenMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write attention into ``output`` `[tokens, heads, head_size]`, and return it; keys and values may have fewer heads."""
        del kv_cache
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("encoder attention does not quantise its output")
        if attn_metadata is None:
            # a profile run: there are no sequences, and the kernels need no memory but their output
            return output.zero_()
        return run(layer, query, key, value, attn_metadata, output)


class EncoderAttention(Attention):  # type: ignore[misc]
    """An attention layer of vLLM with our backend; subclasses add a position term to its scores.

    Attributes:
        query_only_tokens: Whether sequences may have tokens that are no keys.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What scores are multiplied by.
        key_heads: Heads of keys and values on this rank, each for as many query heads; None for one a query head.
        prefix: The layer's name in the model; must be unique.
    """

    query_only_tokens = False

    def __init__(self, heads: int, head_size: int, scale: float, *, key_heads: int | None = None, prefix: str) -> None:
        super().__init__(
            heads,
            head_size,
            scale,
            num_kv_heads=key_heads,
            prefix=prefix,
            attn_type=AttentionType.ENCODER_ONLY,
            attn_backend=EncoderBackend,
        )
        self.scale = scale

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Compute the position tables. vLLM calls this when all linear layers have their final, perhaps quantised, weights."""
        super().process_weights_after_loading(act_dtype)
        with torch.no_grad():
            self.prepare()
            if self._k_scale.is_cuda:
                warm_up(self, act_dtype, self._k_scale.device)

    @abstractmethod
    def prepare(self) -> None:
        """Compute what depends on weights only."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: VarlenMetadata, output: Tensor) -> None:
        """Write attention into ``output`` `[tokens, heads, head_size]`; keys and values are `[tokens, key_heads, head_size]`."""


def warm_up(layer: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Run a layer's kernel once for every form that it is compiled in, so that no client waits for its compiler.

    Args:
        layer: An attention layer whose ``attend`` calls a kernel of ours.
        dtype: Of its rows.
        device: The GPU.
    """
    for tokens in WARM_UP_TOKENS:
        rows = torch.zeros(tokens, layer.num_heads, layer.head_size, dtype=dtype, device=device)
        keys = rows[:, : layer.num_kv_heads]
        offsets = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        for key_lengths in (None, offsets[1:]) if layer.query_only_tokens else (None,):
            metadata = VarlenMetadata(offsets, tokens, tokens, key_lengths)
            layer.attend(rows, keys, keys, metadata, torch.empty_like(rows))


# position keys and position queries, `[rows, heads * head_size]` each; None for a term that the model lacks
PositionTables = tuple[Tensor | None, Tensor | None]


class DisentangledAttention(EncoderAttention):
    """DeBERTa's attention: ``scale * (q_i . k_j + q_i . pk[row(i - j)] + k_j . pq[row(i - j)])``.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What scores are multiplied by.
        position_index: `[2 * limit + 1]` int32: the relative embeddings' row of each distance.
        tables: Gives position keys and position queries of this rank's heads; called after loading.
        changes: Gives what the LoRA adapter in a slot adds to them, float32.
        prefix: The layer's name in the model.
    """

    def __init__(
        self,
        heads: int,
        head_size: int,
        scale: float,
        *,
        position_index: Tensor,
        tables: Callable[[], PositionTables],
        changes: Callable[[int], PositionTables],
        prefix: str,
    ) -> None:
        super().__init__(heads, head_size, scale, prefix=prefix)
        self._tables = tables
        self._changes = changes
        self._table_of: Callable[[VarlenMetadata], Tensor] | None = None
        self.position_index = position_index
        self.position_key: Tensor | None = None
        self.position_query: Tensor | None = None

    def prepare(self) -> None:
        """Project the relative embeddings, and order them by distance: `[heads, 2 * limit + 1, head_size]`."""
        # vLLM's own buffer says which device the layer is on
        self.position_index = self.position_index.to(self._k_scale.device)
        self.position_key, self.position_query = (self._by_distance(table) for table in self._tables())

    def keep_adapters(self, slots: int, table_of: Callable[[VarlenMetadata], Tensor]) -> None:
        """Keep tables for the adapter of each slot beside those of the model: `[1 + slots, heads, 2 * limit + 1, head_size]`.

        Args:
            slots: Slots of adapters.
            table_of: Gives the table of each sequence of a batch, `[sequences]` int32: 0 for the model's, above it those of slots.
        """
        self.position_key, self.position_query = (
            None if table is None else table.expand(1 + slots, -1, -1, -1).contiguous()
            for table in (self.position_key, self.position_query)
        )
        self._table_of = table_of
        table = self.position_key if self.position_key is not None else self.position_query
        if table is not None and table.is_cuda:
            with torch.no_grad():
                warm_up(self, table.dtype, table.device)

    def set_adapter(self, slot: int) -> None:
        """Compute the tables of the adapter that is in ``slot`` now."""
        for tables, change in zip((self.position_key, self.position_query), self._changes(slot), strict=True):
            if tables is not None and (added := self._by_distance(change)) is not None:
                tables[1 + slot] = tables[0].float() + added

    def _by_distance(self, table: Tensor | None) -> Tensor | None:
        if table is None:
            return None
        rows = table[self.position_index]
        return rows.view(-1, self.num_heads, self.head_size).transpose(0, 1).contiguous()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: VarlenMetadata, output: Tensor) -> None:
        """Write attention over `[tokens, heads, head_size]` into ``output``."""
        disentangled_attention(
            query,
            key,
            value,
            self.position_key,
            self.position_query,
            metadata.cu_seqlens,
            metadata.max_seqlen,
            scale=self.scale,
            key_lengths=metadata.key_lengths,
            tables=None if self._table_of is None else self._table_of(metadata),
            out=output,
        )


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    metadata: VarlenMetadata,
    output: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    window: int | None = None,
    causal: bool = False,
) -> None:
    """Write the kernel's attention over the sequences of a batch into ``output``."""
    relative_bias_attention(
        query,
        key,
        value,
        bias,
        metadata.cu_seqlens,
        metadata.max_seqlen,
        scale=scale,
        window=window,
        causal=causal,
        key_lengths=metadata.key_lengths,
        out=output,
    )


class RelativeBiasAttention(EncoderAttention):
    """T5's attention: ``scale * q_i . k_j + bias[j - i]``.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What the products are multiplied by; 1 in T5.
        bias: Gives the bias of this rank's heads, `[heads, 2 * limit + 1]` float32; called after loading.
        prefix: The layer's name in the model.
    """

    def __init__(
        self, heads: int, head_size: int, scale: float = 1.0, *, bias: Callable[[], Tensor], prefix: str
    ) -> None:
        super().__init__(heads, head_size, scale, prefix=prefix)
        self._bias = bias
        self.bias = torch.empty(0)

    def prepare(self) -> None:
        """Compute the bias of each distance from the bucket table."""
        self.bias = self._bias()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: VarlenMetadata, output: Tensor) -> None:
        """Write attention over `[tokens, heads, head_size]` into ``output``."""
        packed_attention(query, key, value, metadata, output, scale=self.scale, bias=self.bias)


class PlainAttention(EncoderAttention):
    """Plain attention by our kernel: with a window, causal, or neither.

    vLLM's own attention without a cache is that of encoders, which lets tokens see those behind them.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What scores are multiplied by.
        window: Tokens to either side that are attended to; None for all.
        causal: Whether tokens attend to none behind them.
        key_heads: Heads of keys and values on this rank, each for as many query heads; None for one a query head.
        prefix: The layer's name in the model.
    """

    def __init__(
        self,
        heads: int,
        head_size: int,
        scale: float,
        *,
        window: int | None = None,
        causal: bool = False,
        key_heads: int | None = None,
        prefix: str,
    ) -> None:
        super().__init__(heads, head_size, scale, key_heads=key_heads, prefix=prefix)
        self.window = window
        self.causal = causal

    def prepare(self) -> None:
        """Compute nothing: there are no tables."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: VarlenMetadata, output: Tensor) -> None:
        """Write attention into ``output`` `[tokens, heads, head_size]`; keys and values are `[tokens, key_heads, head_size]`."""
        packed_attention(query, key, value, metadata, output, scale=self.scale, window=self.window, causal=self.causal)


def run(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    metadata: VarlenMetadata,
    output: Tensor,
) -> Tensor:
    """Write attention over `[tokens, heads, head_size]` by the layer's ``attend`` into ``output``, zeros into padding; return ``output``."""
    tokens = metadata.tokens
    if tokens:
        layer.attend(query[:tokens], key[:tokens], value[:tokens], metadata, output[:tokens])
    if tokens < output.shape[0]:
        # never NaN, because a quantised layer behind may scale by the largest number of all rows
        output[tokens:].zero_()
    return output
