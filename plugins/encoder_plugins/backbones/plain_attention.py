"""Plain attention, global or with a window: by our kernel where it is the faster one, by vLLM's own backend elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention.encoder_only_attention import create_encoder_only_attention_backend
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionType, CommonAttentionMetadata
from vllm.v1.attention.selector import get_attn_backend

from encoder_plugins.backbones.attention import PlainAttention, VarlenMetadata, packed_attention, run, warm_up

# up to this width of a head, and up to so many tokens where there is no window, our kernel is faster than FlashAttention-3 on an H200;
# wider heads were not measured
WIDEST_HEAD = 64
LONGEST = 1024


def plain_attention(
    heads: int,
    head_size: int,
    scale: float,
    *,
    window: int | None,
    longest: int,
    key_heads: int | None = None,
    prefix: str,
) -> Attention:
    """Return an attention layer that is fast on this platform.

    It is the layer, and never a batch, that decides which kernel is used: an answer does not depend on what else is in the batch.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What scores are multiplied by.
        window: Tokens to either side that are attended to; None for all.
        longest: Tokens of the longest sequence that the model reads.
        key_heads: Heads of keys and values on this rank, each for as many query heads; None for one a query head.
        prefix: The layer's name in the model; must be unique.
    """
    faster = head_size <= WIDEST_HEAD and (window is not None or longest <= LONGEST)
    ours = faster and current_platform.is_cuda()
    kind = PlainAttention if ours else NativeAttention
    return kind(heads, head_size, scale, window=window, key_heads=key_heads, prefix=prefix)


class NativeAttention(Attention):  # type: ignore[misc]
    """Plain attention, global or with a window, by vLLM's own kernel: FlashAttention on a GPU.

    That kernel takes as many keys as queries. A batch in which some tokens are queries only has our metadata, and is computed by
    our kernel: vLLM's would count a window from the end of the keys.

    Args:
        heads: Heads on this rank.
        head_size: Width of a head.
        scale: What scores are multiplied by.
        window: Tokens to either side that are attended to; None for all.
        key_heads: Heads of keys and values on this rank, each for as many query heads; None for one a query head.
        prefix: The layer's name in the model; must be unique.

    Attributes:
        query_only_tokens: Whether sequences may have tokens that are no keys.
    """

    query_only_tokens = False

    def __init__(
        self,
        heads: int,
        head_size: int,
        scale: float,
        *,
        window: int | None,
        key_heads: int | None = None,
        prefix: str,
    ) -> None:
        own = get_attn_backend(head_size, torch.get_default_dtype(), "auto", attn_type=AttentionType.ENCODER_ONLY)
        super().__init__(
            heads,
            head_size,
            scale,
            num_kv_heads=key_heads,
            prefix=prefix,
            attn_type=AttentionType.ENCODER_ONLY,
            attn_backend=_with_key_lengths(create_encoder_only_attention_backend(own)),
            # vLLM counts the token itself
            per_layer_sliding_window=None if window is None else window + 1,
        )
        self.scale = scale
        self.window = window

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Compile the kernel that requests may need."""
        super().process_weights_after_loading(act_dtype)
        if self.query_only_tokens and self._k_scale.is_cuda:
            with torch.no_grad():
                warm_up(self, act_dtype, self._k_scale.device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: VarlenMetadata, output: Tensor) -> None:
        """Write attention over `[tokens, heads, head_size]` into ``output``."""
        packed_attention(query, key, value, metadata, output, scale=self.scale, window=self.window)


@functools.cache
def _with_key_lengths(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Return a backend of vLLM's whose implementation leaves batches with our metadata to the layer."""
    implementation: Any = backend.get_impl_cls()
    builder: Any = backend.get_builder_cls()

    class KeyLengthsBuilder(builder):  # type: ignore[misc]
        def build(
            self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
        ) -> Any:
            # otherwise FlashAttention launches a kernel for a schedule that its attention of encoders does not read
            return super().build(common_prefix_len, common_attn_metadata, True)

    class KeyLengthsImpl(implementation):  # type: ignore[misc]
        def forward(
            self,
            layer: NativeAttention,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            kv_cache: Tensor,
            attn_metadata: Any,
            output: Tensor,
            output_scale: Tensor | None = None,
            output_block_scale: Tensor | None = None,
        ) -> Tensor:
            if isinstance(attn_metadata, VarlenMetadata):
                return run(layer, query, key, value, attn_metadata, output)
            rows: Tensor = super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
            return rows

    class KeyLengthsBackend(backend):  # type: ignore[misc]
        @staticmethod
        def get_impl_cls() -> type[KeyLengthsImpl]:
            return KeyLengthsImpl

        @staticmethod
        def get_builder_cls() -> type[KeyLengthsBuilder]:
            return KeyLengthsBuilder

    return KeyLengthsBackend
