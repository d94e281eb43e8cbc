"""GLiNER's span head over a packed batch: the score of every span for every label, and the spans above a threshold."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.span_scores import reference

__all__ = ["span_logits", "span_scores"]


def span_scores(
    start: torch.Tensor,
    end: torch.Tensor,
    label: torch.Tensor,
    label_bias: torch.Tensor,
    word_offsets: torch.Tensor,
    label_offsets: torch.Tensor,
    thresholds: torch.Tensor,
    *,
    max_width: int,
    capacity: int,
    max_words: int,
    max_labels: int,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the spans whose logit is at least their request's threshold.

    ``logit[i, w, c] = relu(start_i + end_{i + w}) · label_c + label_bias_c`` for the words ``i`` and ``i + w`` and the labels ``c`` of one
    request, ``0 <= w < max_width``, both words inside the request. That is markerV0's last projection with everything that depends on one
    word or one label moved out of the span: ``W2 relu(W1 [s_i; e_j] + b1) + b2`` dotted with a label ``p`` has ``start = W1a s + b1``,
    ``end = W1b e``, ``label = p W2`` and ``label_bias = p · b2``. Sums are in float32.

    Args:
        start: `[words, inner]`, all requests' words one behind the other.
        end: `[words, inner]`.
        label: `[labels, inner]`, all requests' labels one behind the other.
        label_bias: `[labels]` float32.
        word_offsets: `[requests + 1]` int32 on the device: where each request's words begin, and the end of the last's.
        label_offsets: `[requests + 1]` int32 on the device, likewise.
        thresholds: `[requests]` float32, in LOGITS (not probabilities): ``log(p / (1 - p))``; minus infinity takes every span, plus infinity none.
        max_width: Words in the longest span.
        capacity: Candidates that are kept of one request, at least 1.
        max_words: At least the words of the request that has most.
        max_labels: At least the labels of the request that has most.
        out: Where the results are written to, when given: dense tensors of their shapes and types.

    Returns:
        ``counts`` `[requests]` int32: how many candidates there were, which may be more than ``capacity``; then not all of them were kept, and
        the caller takes ``span_logits``. ``spans`` `[requests, capacity, 3]` int32: (start, width, class) with the start and the class
        counted from the request's first; width 0 is one word. ``logits`` `[requests, capacity]` float32. The order of a request's
        candidates is undefined, and so is what lies behind them.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: GLiNER's ``SpanMarkerV0`` and ``UniEncoderSpanModel``; Zaratiana et al., "GLiNER: Generalist Model for Named Entity Recognition
    using Bidirectional Transformer".
    """
    _check(start, end, label, label_bias, max_width)
    checks.index("word_offsets", word_offsets, start)
    checks.index("label_offsets", label_offsets, start)
    if word_offsets.shape[0] < 1:
        raise ValueError("word_offsets: expected requests + 1 entries, found none")
    requests = word_offsets.shape[0] - 1
    checks.shaped("label_offsets", label_offsets, (requests + 1,))
    checks.shaped("thresholds", thresholds, (requests,))
    if thresholds.dtype != torch.float32 or thresholds.device != start.device or not thresholds.is_contiguous():
        raise ValueError(
            f"thresholds: expected dense float32 on {start.device}, found {thresholds.dtype} on {thresholds.device}"
        )
    for name, number, least in (("capacity", capacity, 1), ("max_words", max_words, 0), ("max_labels", max_labels, 0)):
        if number < least:
            raise ValueError(f"{name}: expected at least {least}, found {number}")
    if out is None:
        counts = torch.zeros(requests, dtype=torch.int32, device=start.device)
        spans = torch.empty((requests, capacity, 3), dtype=torch.int32, device=start.device)
        logits = torch.empty((requests, capacity), dtype=torch.float32, device=start.device)
    else:
        counts, spans, logits = _checked_out(out, requests, capacity, start.device)
        counts.zero_()
    if runs_triton(start):
        from encoder_kernels.span_scores import kernel

        kernel.launch(
            (start, end, label, label_bias, word_offsets, label_offsets, thresholds),
            (max_width, max_words, max_labels),
            (counts, spans, logits),
        )
    else:
        reference.candidates(
            (start, end, label, label_bias, word_offsets, label_offsets, thresholds), max_width, (counts, spans, logits)
        )
    return counts, spans, logits


def span_logits(
    start: torch.Tensor, end: torch.Tensor, label: torch.Tensor, label_bias: torch.Tensor, *, max_width: int
) -> torch.Tensor:
    """Return every logit of one request; the formula is ``span_scores``'.

    Args:
        start: `[words, inner]`.
        end: `[words, inner]`.
        label: `[labels, inner]`.
        label_bias: `[labels]` float32.
        max_width: Words in the longest span.

    Returns:
        `[words, max_width, labels]` float32; minus infinity for spans that end beyond the last word.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.
    """
    _check(start, end, label, label_bias, max_width)
    if runs_triton(start):
        from encoder_kernels.span_scores import kernel

        return kernel.dense(start, end, label, label_bias, max_width)
    return reference.dense(start, end, label, label_bias, max_width)


def _checked_out(
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor], requests: int, capacity: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    for number, (shape, dtype) in enumerate(
        (
            ((requests,), torch.int32),
            ((requests, capacity, 3), torch.int32),
            ((requests, capacity), torch.float32),
        )
    ):
        checks.shaped(f"out[{number}]", out[number], shape)
        if out[number].dtype != dtype or out[number].device != device or not out[number].is_contiguous():
            raise ValueError(
                f"out[{number}]: expected dense {dtype} on {device}, found {out[number].dtype} on {out[number].device}"
            )
    return out


def _check(
    start: torch.Tensor, end: torch.Tensor, label: torch.Tensor, label_bias: torch.Tensor, max_width: int
) -> None:
    checks.floating("start", start, 2)
    checks.shaped("end", end, tuple(start.shape))
    checks.like("end", end, start)
    checks.shaped("label", label, (label.shape[0], start.shape[1]))
    checks.like("label", label, start)
    for name, tensor in (("start", start), ("end", end), ("label", label)):
        if tensor.stride(1) != 1:
            raise ValueError(f"{name}: expected a last dimension of stride 1, found {tensor.stride(1)}")
    checks.shaped("label_bias", label_bias, (label.shape[0],))
    if label_bias.dtype not in (torch.float32, torch.float64) or label_bias.device != start.device:
        raise ValueError(
            f"label_bias: expected float32 on {start.device}, found {label_bias.dtype} on {label_bias.device}"
        )
    if not label_bias.is_contiguous():
        raise ValueError(f"label_bias: expected a dense vector, found stride {label_bias.stride(0)}")
    if max_width < 1:
        raise ValueError(f"max_width: expected at least 1, found {max_width}")
