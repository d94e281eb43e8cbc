"""Checks of arguments that several operations share. They read shapes, types and devices only, never values on a device."""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def floating(name: str, tensor: torch.Tensor, dimensions: int) -> None:
    """Refuse a tensor that is not of ``dimensions`` dimensions and a floating type.

    Raises:
        ValueError: With ``name`` and what was found.
    """
    if tensor.dim() != dimensions:
        raise ValueError(f"{name}: expected {dimensions} dimensions, found shape {tuple(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name}: expected a floating type, found {tensor.dtype}")


def like(name: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse a tensor whose type or device is not ``other``'s.

    Raises:
        ValueError: With ``name`` and what was found.
    """
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name}: expected {other.dtype}, found {tensor.dtype}")
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected a tensor on {other.device}, found {tensor.device}")


def shaped(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ValueError: With ``name``, what was expected and what was found.
    """
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, found {tuple(tensor.shape)}")


def dense_columns(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose last dimension has gaps.

    Raises:
        ValueError: With ``name`` and what was found.
    """
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected a last dimension of stride 1, found {tensor.stride(-1)}")


def index(name: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse what is not a dense int32 vector on ``other``'s device.

    Raises:
        ValueError: With ``name`` and what was found.
    """
    if tensor.dtype != torch.int32 or tensor.dim() != 1:
        raise ValueError(f"{name}: expected an int32 vector, found {tensor.dtype} of shape {tuple(tensor.shape)}")
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected a tensor on {other.device}, found {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a dense vector, found stride {tensor.stride(0)}")


def packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    out: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
    *,
    grouped: bool = False,
) -> None:
    """Check what every attention over packed sequences takes; with ``grouped``, several heads of queries may share one of keys.

    Raises:
        ValueError: With the argument's name and what is wrong with it.
    """
    floating("query", query, 3)
    tokens, heads, head_size = query.shape
    theirs = (tokens, heads, head_size)
    if grouped:
        floating("key", key, 3)
        if not key.shape[1] or heads % key.shape[1]:
            raise ValueError(f"key: expected heads that divide the {heads} of queries, found {key.shape[1]}")
        theirs = (tokens, key.shape[1], head_size)
    shaped("key", key, theirs)
    shaped("value", value, theirs)
    if out is not None:
        shaped("out", out, (tokens, heads, head_size))
    for name, tensor in (("key", key), ("value", value), *((("out", out),) if out is not None else ())):
        like(name, tensor, query)
    for name, tensor in (
        ("query", query),
        ("key", key),
        ("value", value),
        *((("out", out),) if out is not None else ()),
    ):
        dense_columns(name, tensor)
    index("cu_seqlens", cu_seqlens, query)
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens: expected sequences + 1 entries, found none")
    if max_seqlen < 0:
        raise ValueError(f"max_seqlen: expected a length, found {max_seqlen}")
    if key_lengths is not None:
        index("key_lengths", key_lengths, query)
        shaped("key_lengths", key_lengths, (cu_seqlens.shape[0] - 1,))
