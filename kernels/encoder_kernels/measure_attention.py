"""What both attention benchmarks share: packed batches and the attentions to compare with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from encoder_kernels import measure

TOKENS, HEADS, HEAD_SIZE = 16_384, 12, 64
LENGTHS = (64, 128, 256, 512, 1024, 2048, 8192)
MIXED = (64, 512, 128, 256, 96, 384, 1024, 200)


@dataclass(frozen=True)
class Batch:
    """A packed batch of random queries, keys and values, views of one buffer."""

    name: str
    lengths: list[int]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    cu_seqlens: torch.Tensor

    @property
    def longest(self) -> int:
        """The longest sequence's length."""
        return max(self.lengths)

    @property
    def operations(self) -> int:
        """Floating-point operations of a plain attention."""
        return 4 * HEADS * HEAD_SIZE * sum(length * length for length in self.lengths)


def batches(*, longest: int = 1024) -> list[Batch]:
    """Return a batch for every length from 64 to ``longest``, which is at most 8 192, and one of mixed lengths."""
    query, key, value = torch.randn(TOKENS, 3, HEADS, HEAD_SIZE, device="cuda", dtype=torch.bfloat16).unbind(1)
    mixed: list[int] = []
    while sum(mixed) < TOKENS:
        mixed.append(min(MIXED[len(mixed) % len(MIXED)], TOKENS - sum(mixed)))
    layouts = {str(length): [length] * (TOKENS // length) for length in LENGTHS if length <= longest} | {"mixed": mixed}
    return [
        Batch(name, lengths, query, key, value, torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32))
        for name, lengths in layouts.items()
    ]


class Flash(Protocol):
    """Times FlashAttention-3."""

    def __call__(self, batch: Batch, *, window: int = -1, causal: bool = False) -> float | None:
        """Return the microseconds of a batch; None where there is none, or where it fails.

        Args:
            batch: The batch.
            window: Keys to either side that are attended to; -1 for all.
            causal: Whether tokens attend to none behind them.
        """


def flash_attention() -> Flash:
    """Return what times FlashAttention-3: vLLM's, or the library that ``FLASH_ATTENTION_3`` names."""
    path = os.environ.get("FLASH_ATTENTION_3", "")
    if Path(path).is_file():
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    elif measure.peer("vllm.vllm_flash_attn") is None:
        return lambda batch, *, window=-1, causal=False: None

    def run(batch: Batch, *, window: int = -1, causal: bool = False) -> float | None:
        out = torch.empty(batch.query.shape, dtype=batch.query.dtype, device="cuda")
        none = [None] * 9
        borders, longest = batch.cu_seqlens, batch.longest
        return measure.attempt(
            lambda: torch.ops._vllm_fa3_C.fwd(
                *(
                    batch.query,
                    batch.key,
                    batch.value,
                    None,
                    None,
                    None,
                    out,
                    borders,
                    borders,
                    None,
                    None,
                    None,
                    longest,
                    longest,
                ),
                *(*none, HEAD_SIZE**-0.5, causal, window, window, 0.0, True, None, 0, None, 0, None, 1, 0, None),
            )
        )

    return run


def native(batch: Batch) -> float | None:
    """Return torch's own attention's time on the same batch where all sequences are of one length."""
    if len(set(batch.lengths)) > 1:
        return None
    query, key, value = (
        tensor.reshape(-1, batch.longest, HEADS, HEAD_SIZE).transpose(1, 2)
        for tensor in (batch.query, batch.key, batch.value)
    )
    return measure.attempt(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value))
