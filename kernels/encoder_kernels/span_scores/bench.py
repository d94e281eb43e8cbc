# ruff: noqa: B023 - every closure is called before the next round
"""The span head against its arithmetic: ``python -m encoder_kernels.span_scores.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure
from encoder_kernels.span_scores import reference, span_scores

REQUESTS, WIDTH, CAPACITY = 32, 12, 256


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    for words, labels, inner in ((64, 5, 2048), (256, 5, 2048), (256, 25, 2048), (512, 25, 2048), (512, 25, 3072)):
        start, end = torch.randn(2, REQUESTS * words, inner, device="cuda", dtype=torch.bfloat16).unbind(0)
        label = torch.randn(REQUESTS * labels, inner, device="cuda", dtype=torch.bfloat16) / inner**0.5
        bias = torch.full((REQUESTS * labels,), -4.0, device="cuda")
        word_offsets = torch.arange(0, REQUESTS * words + 1, words, device="cuda", dtype=torch.int32)
        label_offsets = torch.arange(0, REQUESTS * labels + 1, labels, device="cuda", dtype=torch.int32)
        thresholds = torch.zeros(REQUESTS, device="cuda")

        def call(
            arguments: tuple[torch.Tensor, ...] = (start, end, label, bias, word_offsets, label_offsets, thresholds),
            words: int = words,
            labels: int = labels,
        ) -> object:
            return span_scores(*arguments, max_width=WIDTH, capacity=CAPACITY, max_words=words, max_labels=labels)

        def per_span(
            start: torch.Tensor = start, end: torch.Tensor = end, label: torch.Tensor = label, words: int = words
        ) -> object:
            """The same for all requests at once, dense and without the threshold: what a framework makes of it."""
            shape = (REQUESTS, words, -1)
            ends = (torch.arange(words, device="cuda")[:, None] + torch.arange(WIDTH, device="cuda")).clamp(
                max=words - 1
            )
            spans = (start.view(shape)[:, :, None] + end.view(shape)[:, ends]).relu_()
            return torch.bmm(spans.flatten(1, 2), label.view(REQUESTS, -1, label.shape[1]).transpose(1, 2))

        ours = measure.microseconds(call)
        plain = measure.attempt(per_span)
        compiled = measure.attempt(measure.compiled(per_span))
        looped = measure.attempt(
            lambda: [
                reference.dense(start[:words], end[:words], label[:labels], bias[:labels], WIDTH)
                for _ in range(REQUESTS)
            ]
        )
        operations = 2 * REQUESTS * words * WIDTH * labels * inner
        rows.append(
            [
                f"{REQUESTS} × {words} words × {labels} labels, {inner}",
                ours,
                looped,
                plain,
                compiled,
                operations / ours / 1e6,
            ]
        )
    columns = [
        "requests (bf16)",
        "ours µs",
        "reference µs",
        "one batch in torch µs",
        "torch.compile of it µs",
        "ours TFLOP/s",
    ]
    return measure.table("span_scores", columns, rows)


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
