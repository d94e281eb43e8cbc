"""Self-attention over packed sequences with a bias by distance (T5), a window of near keys, causal, or none of these."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.relative_bias_attention import reference
from encoder_kernels.relative_bias_attention.bias import t5_bias

__all__ = ["relative_bias_attention", "t5_bias"]


def relative_bias_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    *,
    scale: float = 1.0,
    window: int | None = None,
    causal: bool = False,
    key_lengths: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(scores) value, each sequence on its own, with a bias that depends on the distance.

    ``score[i, j] = scale * query_i · key_j + bias[head, clamp(j - i, -limit, limit) + limit]``, summed in float32.

    Args:
        query: `[tokens, heads, head_size]`, the sequences one behind the other; may be a strided view of one qkv buffer.
        key: `[tokens, key_heads, head_size]`, likewise; each head of keys is that of ``heads / key_heads`` heads of queries.
        value: As ``key``.
        bias: `[heads, 2 * limit + 1]` float32, dense, as ``t5_bias`` makes it; None for none.
        cu_seqlens: `[sequences + 1]` int32 on the device: where each sequence begins, and the end of the last.
        max_seqlen: At least the longest sequence's length; tokens of a sequence beyond it are not computed.
        scale: 1 in T5.
        window: Keys that are farther away than this are not attended to; None for no such limit. A row without any key is 0.
        causal: Whether tokens attend to none behind them.
        key_lengths: `[sequences]` int32 on the device: how many of each sequence's first tokens are keys, at least 1; None for all. The
            tokens behind them are queries only: they attend to the keys, and nothing attends to them.
        out: `[tokens, heads, head_size]`, written to when given. Rows beyond ``cu_seqlens[-1]`` (graph padding) stay as they are; in a
            fresh tensor they are undefined.

    Returns:
        ``out``, `[tokens, heads, head_size]`.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1; transformers'
    ``MT5Attention``.
    """
    checks.packed(query, key, value, cu_seqlens, max_seqlen, out, key_lengths, grouped=True)
    if bias is not None:
        _check_bias(bias, query)
    if window is not None and window < 0:
        raise ValueError(f"window: expected a distance, found {window}")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if runs_triton(query):
        from encoder_kernels.relative_bias_attention import kernel

        kernel.launch(query, key, value, bias, cu_seqlens, max_seqlen, scale, out, window, causal, key_lengths)
    else:
        reference.attend(query, key, value, bias, cu_seqlens, scale, out, window, causal, key_lengths)
    return out


def _check_bias(bias: torch.Tensor, query: torch.Tensor) -> None:
    if bias.dim() != 2 or bias.dtype != torch.float32 or bias.shape[0] != query.shape[1] or bias.shape[1] % 2 != 1:
        raise ValueError(
            f"bias: expected float32 of shape ({query.shape[1]}, 2 * limit + 1), found {bias.dtype} of shape {tuple(bias.shape)}"
        )
    if bias.device != query.device:
        raise ValueError(f"bias: expected a tensor on {query.device}, found {bias.device}")
    if not bias.is_contiguous():
        raise ValueError(f"bias: expected a dense tensor, found strides {bias.stride()}")
