# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The span head in Triton: spans by labels as one matrix product whose left side is made on the way, and the threshold behind it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _logits(
    start,
    end,
    label,
    label_bias,
    start_word,
    end_word,
    label_row,
    inner,
    first,
    last,
    classes,
    WIDTHS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the tile of logits of spans by classes, the spans' start words and widths; addresses behind an end repeat the last row."""
    spans = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    words = spans // WIDTHS
    widths = spans % WIDTHS
    begins = (first + tl.minimum(words, last - first - 1)).to(tl.int64)
    ends = (first + tl.minimum(words + widths, last - first - 1)).to(tl.int64)
    inners = tl.arange(0, BLOCK_K)
    left = start + begins[:, None] * start_word + inners[None, :]
    right = end + ends[:, None] * end_word + inners[None, :]
    weights = label + classes.to(tl.int64)[None, :] * label_row + inners[:, None]
    result = tl.zeros([BLOCK_S, BLOCK_C], tl.float32)
    for offset in range(0, inner, BLOCK_K):
        inside = inners < inner - offset
        activation = tl.load(left + offset, mask=inside[None, :], other=0.0).to(tl.float32)
        activation += tl.load(right + offset, mask=inside[None, :], other=0.0).to(tl.float32)
        weight = tl.load(weights + offset, mask=inside[:, None], other=0.0)
        result = tl.dot(tl.maximum(activation, 0.0).to(weight.dtype), weight, result, input_precision=PRECISION)
    return result + tl.load(label_bias + classes)[None, :], words, widths


# these come as parts of one copy, wherever in it: aligned or not, it must be the same compiled kernel
@triton.jit(
    do_not_specialize=["capacity"],
    do_not_specialize_on_alignment=["label_bias", "word_offsets", "label_offsets", "thresholds"],
)
def span_scores_kernel(
    start,
    end,
    label,
    label_bias,
    word_offsets,
    label_offsets,
    thresholds,
    counts,
    spans,
    logits,
    start_word,
    end_word,
    label_row,
    inner,
    capacity,
    WIDTHS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Score one tile of one request and append its candidates to the request's."""
    request = tl.program_id(2).to(tl.int64)
    first = tl.load(word_offsets + request)
    last = tl.load(word_offsets + request + 1)
    first_label = tl.load(label_offsets + request)
    labels = tl.load(label_offsets + request + 1) - first_label
    if tl.program_id(0) * BLOCK_S >= (last - first) * WIDTHS or tl.program_id(1) * BLOCK_C >= labels:
        return
    classes = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rows = first_label + tl.minimum(classes, labels - 1)
    scores, words, widths = _logits(
        start,
        end,
        label,
        label_bias,
        start_word,
        end_word,
        label_row,
        inner,
        first,
        last,
        rows,
        WIDTHS,
        BLOCK_K,
        BLOCK_S,
        BLOCK_C,
        PRECISION,
    )
    valid = (words + widths < last - first)[:, None] & (classes < labels)[None, :]
    above = (valid & (scores >= tl.load(thresholds + request))).to(tl.int32)
    # not from the sums of rows: for a B200, Triton 3.6 and 3.7 end while they compile a sum of sums behind a product
    found = tl.sum(above)
    if found == 0:
        return
    in_rows = tl.sum(above, 1)
    base = tl.atomic_add(counts + request, found, sem="relaxed")
    places = base + (tl.cumsum(in_rows, 0) - in_rows)[:, None] + tl.cumsum(above, 1) - above
    kept = (above != 0) & (places < capacity)
    target = request * capacity + places
    tl.store(logits + target, scores, mask=kept)
    tl.store(spans + target * 3, tl.broadcast_to(words[:, None], [BLOCK_S, BLOCK_C]), mask=kept)
    tl.store(spans + target * 3 + 1, tl.broadcast_to(widths[:, None], [BLOCK_S, BLOCK_C]), mask=kept)
    tl.store(spans + target * 3 + 2, tl.broadcast_to(classes[None, :], [BLOCK_S, BLOCK_C]), mask=kept)


@triton.jit(do_not_specialize=["words", "labels"], do_not_specialize_on_alignment=["label_bias"])
def span_logits_kernel(
    start,
    end,
    label,
    label_bias,
    out,
    start_word,
    end_word,
    label_row,
    inner,
    words,
    labels,
    WIDTHS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write one tile of one request's logits."""
    classes = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scores, begins, widths = _logits(
        start,
        end,
        label,
        label_bias,
        start_word,
        end_word,
        label_row,
        inner,
        0,
        words,
        tl.minimum(classes, labels - 1),
        WIDTHS,
        BLOCK_K,
        BLOCK_S,
        BLOCK_C,
        PRECISION,
    )
    scores = tl.where((begins + widths < words)[:, None], scores, float("-inf"))
    target = out + (begins.to(tl.int64) * WIDTHS + widths)[:, None] * labels + classes[None, :]
    tl.store(target, scores, mask=(begins < words)[:, None] & (classes < labels)[None, :])


def settings(dtype: torch.dtype, labels: int) -> dict[str, int]:
    """Return the launch settings; the label block has one of three widths."""
    width = 16 if labels <= 16 else 32 if labels <= 32 else 64
    if dtype == torch.float32:
        return {"BLOCK_S": 32, "BLOCK_C": width, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_S": 128, "BLOCK_C": width, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}


def launch(
    arguments: tuple[torch.Tensor, ...],
    extents: tuple[int, int, int],
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    chosen: dict[str, int] | None = None,
) -> None:
    """Add the candidates to ``results``; ``arguments`` and ``extents`` (width, words, labels) as in ``span_scores``, in its order."""
    start, end, label = arguments[:3]
    width, words, labels = extents
    requests = results[0].shape[0]
    if not (requests and words and labels and start.shape[0] and label.shape[0]):
        return
    config = chosen or settings(start.dtype, labels)
    span_scores_kernel[
        (triton.cdiv(words * width, config["BLOCK_S"]), triton.cdiv(labels, config["BLOCK_C"]), requests)
    ](
        *arguments,
        *results,
        start.stride(0),
        end.stride(0),
        label.stride(0),
        start.shape[1],
        results[1].shape[1],
        WIDTHS=width,
        PRECISION="ieee" if start.dtype == torch.float32 else "tf32",
        **config,
    )


def dense(
    start: torch.Tensor, end: torch.Tensor, label: torch.Tensor, label_bias: torch.Tensor, max_width: int
) -> torch.Tensor:
    """Return `[words, max_width, labels]`; arguments as in ``span_logits``."""
    words, labels = start.shape[0], label.shape[0]
    out = torch.empty((words, max_width, labels), dtype=torch.float32, device=start.device)
    if words and labels:
        config = settings(start.dtype, labels)
        span_logits_kernel[(triton.cdiv(words * max_width, config["BLOCK_S"]), triton.cdiv(labels, config["BLOCK_C"]))](
            start,
            end,
            label,
            label_bias,
            out,
            start.stride(0),
            end.stride(0),
            label.stride(0),
            start.shape[1],
            words,
            labels,
            WIDTHS=max_width,
            PRECISION="ieee" if start.dtype == torch.float32 else "tf32",
            **config,
        )
    return out
