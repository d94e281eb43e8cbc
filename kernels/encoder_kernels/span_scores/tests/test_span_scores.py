# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import pytest
import torch

from encoder_kernels.span_scores import span_logits, span_scores


def straightforward(start, end, label, label_bias, width):  # type: ignore[no-untyped-def]
    """Return {(start, width, class): logit} of one request in float64."""
    start, end, label, label_bias = (tensor.double().cpu() for tensor in (start, end, label, label_bias))
    return {
        (i, w, c): (torch.relu(start[i] + end[i + w]) @ label[c] + label_bias[c]).item()
        for i in range(len(start))
        for w in range(width)
        for c in range(len(label))
        if i + w < len(start)
    }


@pytest.mark.parametrize("inner", [16, 100])
@pytest.mark.parametrize(
    ("words", "labels"), [([5], [3]), ([4, 0, 13, 1], [2, 1, 20, 5]), ([3, 3], [0, 70]), ([0], [2]), ([], [])]
)
def test_candidates(any_form, words: list[int], labels: list[int], inner: int) -> None:  # type: ignore[no-untyped-def]
    width = 12
    start, end = any_form.randn(sum(words), inner), any_form.randn(sum(words), inner)
    label, label_bias = any_form.randn(sum(labels), inner) / 8, torch.randn(sum(labels), device=any_form.device)
    thresholds = torch.tensor([0.3, float("-inf"), -0.2, float("inf")][: len(words)], device=any_form.device)
    word_offsets, label_offsets = any_form.offsets(words), any_form.offsets(labels)
    capacity = 12 * 20 * 13
    counts, spans, logits = span_scores(
        start,
        end,
        label,
        label_bias,
        word_offsets,
        label_offsets,
        thresholds,
        max_width=width,
        capacity=capacity,
        max_words=max(words, default=0),
        max_labels=max(labels, default=0),
    )
    assert counts.dtype == spans.dtype == torch.int32
    assert logits.dtype == torch.float32
    slack = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[any_form.dtype]
    for request in range(len(words)):
        word, name = (
            slice(*word_offsets[request : request + 2].tolist()),
            slice(*label_offsets[request : request + 2].tolist()),
        )
        truth = straightforward(start[word], end[word], label[name], label_bias[name], width)
        count, threshold = int(counts[request]), float(thresholds[request])
        found = {
            tuple(span): logit
            for span, logit in zip(spans[request, :count].tolist(), logits[request, :count].tolist(), strict=True)
        }
        assert len(found) == count
        for span, logit in found.items():
            assert abs(logit - truth[span]) <= slack
            assert logit >= threshold
        assert {span for span, logit in truth.items() if logit >= threshold + slack} <= found.keys()
        assert found.keys() <= {span for span, logit in truth.items() if logit >= threshold - slack}


def test_more_candidates_than_capacity(form) -> None:  # type: ignore[no-untyped-def]
    start, label = form.randn(9, 16), form.randn(2, 16)
    counts, spans, _ = span_scores(
        start,
        start,
        label,
        torch.zeros(2, device=form.device),
        form.offsets([9]),
        form.offsets([2]),
        torch.full((1,), float("-inf"), device=form.device),
        max_width=4,
        capacity=7,
        max_words=9,
        max_labels=2,
    )
    assert counts.tolist() == [(9 + 8 + 7 + 6) * 2]
    kept = {tuple(span) for span in spans[0].tolist()}
    assert len(kept) == 7
    assert all(0 <= i < 9 and 0 <= w < 4 and i + w < 9 and c in (0, 1) for i, w, c in kept)


def test_results_are_written_to_given_tensors(form) -> None:  # type: ignore[no-untyped-def]
    start, label = form.randn(9, 16), form.randn(2, 16)
    arguments = {
        "start": start,
        "end": start,
        "label": label,
        "label_bias": torch.zeros(2, device=form.device),
        "word_offsets": form.offsets([5, 4]),
        "label_offsets": form.offsets([1, 1]),
        "thresholds": torch.zeros(2, device=form.device),
        **{"max_width": 4, "capacity": 20, "max_words": 5, "max_labels": 1},
    }
    # what stands there before does not count
    counts = torch.full((2,), 9, dtype=torch.int32, device=form.device)
    spans = torch.full((2, 20, 3), -1, dtype=torch.int32, device=form.device)
    logits = torch.full((2, 20), torch.nan, device=form.device)
    given = span_scores(**arguments, out=(counts, spans, logits))
    assert all(one is other for one, other in zip(given, (counts, spans, logits), strict=True))
    expected = span_scores(**arguments)
    assert counts.tolist() == expected[0].tolist()
    for request, count in enumerate(counts.tolist()):
        found, wanted = (
            dict(zip(map(tuple, places[request, :count].tolist()), values[request, :count].tolist(), strict=True))
            for _, places, values in (given, expected)
        )
        assert found == wanted
    for place, wrong in enumerate((counts.long(), spans[:1], logits[:, :19])):
        with pytest.raises(ValueError, match=rf"^out\[{place}\]: "):
            span_scores(**arguments, out=tuple(wrong if at == place else one for at, one in enumerate(given)))


@pytest.mark.parametrize(("words", "labels", "width"), [(0, 2, 3), (1, 1, 12), (14, 19, 5), (40, 3, 12), (3, 0, 2)])
def test_every_logit(any_form, words: int, labels: int, width: int) -> None:  # type: ignore[no-untyped-def]
    start, end = any_form.randn(words, 48), any_form.randn(words, 48)
    label, label_bias = any_form.randn(labels, 48) / 7, torch.randn(labels, device=any_form.device)
    logits = span_logits(start, end, label, label_bias, max_width=width)
    assert logits.shape == (words, width, labels)
    truth = straightforward(start, end, label, label_bias, width)
    expected = torch.full((words, width, labels), float("-inf"), dtype=torch.float64)
    for place, logit in truth.items():
        expected[place] = logit
    inside = expected.isfinite()
    assert torch.equal(logits.isneginf().cpu(), ~inside)
    slack = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[any_form.dtype]
    torch.testing.assert_close(logits.cpu()[inside].double(), expected[inside], atol=slack, rtol=slack)


def test_it_is_markers_head() -> None:
    """The form with everything moved out of the span equals the head as the library writes it."""
    words, size, labels = 7, 8, 3
    start, end, label = (torch.randn(count, size, dtype=torch.float64) for count in (words, words, labels))
    first, second = torch.nn.Linear(2 * size, 4 * size).double(), torch.nn.Linear(4 * size, size).double()
    with torch.no_grad():
        pairs = torch.cat((start[:, None].expand(-1, words, -1), end[None].expand(words, -1, -1)), 2).relu()
        spans = second(first(pairs).relu())
        theirs = spans @ label.t()
        left, right = first.weight.chunk(2, 1)
        ours = span_logits(
            (start.relu() @ left.t() + first.bias).float(),
            (end.relu() @ right.t()).float(),
            (label @ second.weight).float(),
            (label @ second.bias).float(),
            max_width=4,
        )
    for i in range(words):
        for w in range(min(4, words - i)):
            torch.testing.assert_close(ours[i, w].double(), theirs[i, i + w], atol=1e-5, rtol=1e-5)


def test_arguments_are_refused_by_name() -> None:
    start, label, bias = torch.randn(5, 16), torch.randn(2, 16), torch.zeros(2)
    words, labels = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    arguments = {
        "start": start,
        "end": start,
        "label": label,
        "label_bias": bias,
        "word_offsets": words,
        "label_offsets": labels,
        "thresholds": torch.zeros(1),
        "max_width": 3,
        "capacity": 4,
        "max_words": 5,
        "max_labels": 2,
    }
    span_scores(**arguments)
    for name, value in {
        "end": start[:4],
        "label": label.half(),
        "label_bias": bias.half(),
        "word_offsets": words.long(),
        "label_offsets": labels[:1],
        "thresholds": torch.zeros(2),
        "max_width": 0,
        "capacity": 0,
        "max_words": -1,
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            span_scores(**{**arguments, name: value})
