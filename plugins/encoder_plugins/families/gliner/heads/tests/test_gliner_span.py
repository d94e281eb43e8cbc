"""The head against gliner's own forward pass, on the same weights and the same encoder rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones import token_marks, weight_loading
    from encoder_plugins.families.gliner.config import GlinerConfig
    from encoder_plugins.families.gliner.heads import span as gliner_span
    from encoder_plugins.families.gliner.heads.batch import cut
    from encoder_plugins.families.gliner.heads.layout import head_layout, slot
    from encoder_plugins.families.gliner.heads.span import GlinerSpanPooler, all_candidates
    from encoder_plugins.families.gliner.heads.span_head import SpanHead
    from encoder_plugins.families.gliner.heads.tests.compared_heads import Library, answers_of, config, metadata
    from encoder_plugins.families.gliner.heads.tests.library_head import ENCODER, Rows, text
    from encoder_plugins.families.gliner.payload import Item, encode, encode_texts

pytestmark = pytest.mark.filterwarnings("ignore")


def pooler(library: Library, settings: GlinerConfig, **more: Any) -> GlinerSpanPooler:
    ours = GlinerSpanPooler(ENCODER, settings, **more)
    weight_loading.load(ours.head, library.tensors().items(), head_layout(ENCODER, settings))
    return ours


def dense(rows: np.ndarray, like: torch.Tensor) -> np.ndarray:
    """Spread an answer's rows over `[words, widths, labels]`, NaN elsewhere."""
    grid = np.full(like.shape, np.nan, np.float32)
    at = rows[:, :3].astype(int)
    assert len(np.unique(at, axis=0)) == len(at)
    grid[at[:, 0], at[:, 1], at[:, 2]] = rows[:, 3]
    return grid


def inside(like: torch.Tensor) -> np.ndarray:
    words, widths, _ = like.shape
    spans = np.arange(words)[:, None] + np.arange(widths)[None] < words
    return np.broadcast_to(spans[:, :, None], like.shape)


TEXTS = [
    text(7, 3, seed=1),
    text(1, 1, seed=2),
    text(23, 6, seed=3),
    text(9, 2, lost=4, seed=4),
    text(3, 5, lost=3, seed=5),
    text(60, 1, seed=6),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "no LSTM": {"lstm_layers": 0},
    "two layers of LSTM": {"lstm_layers": 2},
    "labels behind the class token": {"embed_class_token": False},
    "no projection": {"projection": False, "hidden_size": ENCODER},
    "width 1": {"max_width": 1},
    "wider than some texts": {"max_width": 12},
}


@pytest.mark.parametrize("capacity", [1, 4096], ids=["all overflow", "none overflows"])
@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS.keys())
def test_logits_are_those_of_the_library(switches: dict[str, Any], capacity: int, record_property: Any) -> None:
    settings = config(**switches)
    library = Library(settings)
    ours = pooler(library, settings, capacity=capacity)
    together = answers_of(ours, TEXTS, [one.extra(0.0) for one in TEXTS])
    batched = library.logits(*TEXTS)
    worst = 0.0
    for one, rows, expected in zip(TEXTS, together, batched, strict=True):
        found = dense(rows, expected)
        assert (np.isfinite(found) == inside(expected)).all()
        alone = dense(answers_of(ours, [one], [one.extra(0.0)])[0], expected)
        for reference in (expected, library.logits(one)[0]):
            difference = np.abs(found - reference.numpy())[inside(expected)].max()
            worst = max(worst, float(difference))
        np.testing.assert_allclose(alone, found, atol=1e-5)
    record_property("worst", worst)
    assert worst <= 1e-4


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("capacity", [3, 4096])
def test_candidates_are_those_above_the_threshold(threshold: float, capacity: int) -> None:
    settings = config()
    library = Library(settings)
    ours = pooler(library, settings, capacity=capacity)
    answers = answers_of(ours, TEXTS, [one.extra(threshold) for one in TEXTS])
    assert threshold == 1.0 or any(len(rows) > 3 for rows in answers)
    for rows, expected in zip(answers, library.logits(*TEXTS), strict=True):
        probability = expected.sigmoid().numpy()
        found = np.isfinite(dense(rows, expected))
        # between the generous cut and the exact one either will do
        sure = np.abs(probability - threshold) > 1e-4
        assert (found == (probability > threshold) & inside(expected))[sure].all()


@pytest.mark.parametrize("classes", [1, 3, 5])
def test_the_best_classes_come_along(classes: int) -> None:
    settings = config()
    library = Library(settings)
    answers = answers_of(pooler(library, settings), TEXTS, [one.extra(0.4, classes) for one in TEXTS])
    for one, rows, expected in zip(TEXTS, answers, library.logits(*TEXTS), strict=True):
        assert rows.shape[1] == 4 + 2 * classes
        known = min(classes, len(one.labels))
        for row in rows:
            best, numbers = expected[int(row[0]), int(row[1])].topk(known)
            pairs = row[4:].reshape(-1, 2)
            np.testing.assert_allclose(pairs[:known, 1], best.numpy(), atol=1e-4)
            assert pairs[:known, 0].tolist() == numbers.tolist()
            assert (pairs[known:, 0] == -1).all()
            assert np.isneginf(pairs[known:, 1]).all()


def test_a_request_gets_the_same_rows_in_any_company() -> None:
    settings = config()
    ours = pooler(Library(settings), settings)
    alone = [answers_of(ours, [one], [one.extra(0.3)])[0] for one in TEXTS]
    for order in ([5, 2, 0, 1, 4, 3], [0, 0, 5, 5, 1, 2], [3]):
        answers = answers_of(ours, [TEXTS[index] for index in order], [TEXTS[index].extra(0.3) for index in order])
        for index, rows in zip(order, answers, strict=True):
            key = np.lexsort(rows[:, :3].T[::-1])
            other = np.lexsort(alone[index][:, :3].T[::-1])
            np.testing.assert_allclose(rows[key], alone[index][other], atol=1e-5)


ONE = np.asarray([1], "<i4").tobytes()
ODD: dict[str, Any] = {
    "no payload": None,
    "another payload": {"something": 1},
    "no words": encode([], [1], 0.5),
    "no labels": encode([5], [], 0.5),
    "a word behind the end": encode([10_000], [1], 0.5),
    "a word before the start": encode([-7], [1], 0.5),
    "a label behind the end": encode([5], [10_000], 0.5),
    "bytes that are no numbers": {"words": b"abc", "labels": b"", "threshold": 0.5, "classes": 0},
    "words that are no bytes": {"words": [1, 2], "labels": b"", "threshold": 0.5, "classes": 0},
    "no threshold": {"words": b"", "labels": b""},
    "a threshold that is not a number": {**encode([5], [1], 0.5), "threshold": "high"},
    "counts that do not add up": {**encode([5, 6], [1, 2], 0.5), "word_counts": ONE, "label_counts": ONE},
    "counts without marks": {**encode([5], [1], 0.5), "word_counts": ONE * 2, "label_counts": ONE * 2},
    "marks of other texts": {**encode([5], [1], 0.5), **token_marks.encode([10, 5])},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_an_odd_request_gets_nothing_and_disturbs_nobody(odd: dict[str, Any] | None) -> None:
    settings = config()
    ours = pooler(Library(settings), settings)
    one = TEXTS[0]
    expected = answers_of(ours, [one], [one.extra(0.4)])[0]
    assert len(expected) > 0
    answers = answers_of(ours, [TEXTS[2], one, TEXTS[3]], [odd, one.extra(0.4), odd])
    assert answers[0].shape == answers[2].shape == (0, 4)
    np.testing.assert_allclose(answers[1], expected, atol=1e-5)


@pytest.mark.parametrize("classes", [0, 2])
def test_a_request_of_several_texts_gets_what_each_gets_alone(classes: int) -> None:
    settings = config()
    ours = pooler(Library(settings), settings)
    order = [2, 5, 0, 3, 1, 4]
    texts = [TEXTS[index] for index in order]
    items = [Item(np.asarray(one.words, np.int32), np.asarray(one.labels, np.int32), 0.3, classes) for one in texts]
    extra = encode_texts(items, [len(one.ids) for one in texts])
    hidden = torch.cat([Rows().rows(one.ids) for one in [TEXTS[3], *texts]])
    lengths = [len(TEXTS[3].ids), sum(len(one.ids) for one in texts)]
    beside, together = ours(hidden, metadata(lengths, [TEXTS[3].extra(0.3), extra]))
    np.testing.assert_allclose(beside.numpy(), answers_of(ours, [TEXTS[3]], [TEXTS[3].extra(0.3)])[0], atol=1e-5)
    first = np.cumsum([0, *(len(one.words) for one in texts)])
    owner = np.searchsorted(first, together[:, 0].numpy(), side="right") - 1
    assert len(set(owner.tolist())) >= 4
    for number, one in enumerate(texts):
        expected = answers_of(ours, [one], [one.extra(0.3, classes)])[0]
        rows = together.numpy()[owner == number]
        rows[:, 0] -= first[number]
        for table in (rows, expected):
            table[:] = table[np.lexsort(table[:, :3].T[::-1])]
        np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("threshold", [0.001, 0.3, 0.5, 0.9, 0.999999])
def test_the_cut_is_slightly_below_the_threshold(threshold: float) -> None:
    lowest = 1 / (1 + math.exp(-cut(threshold)))
    assert threshold - 2e-6 <= lowest < threshold


def test_the_cut_at_the_ends() -> None:
    assert cut(0.0) == -math.inf
    assert cut(math.nan) == math.inf
    assert 13.0 < cut(1.0) < 14.0
    assert cut(1.5) == math.inf


def test_a_request_that_is_not_whole_gets_nothing() -> None:
    settings = config()
    ours = pooler(Library(settings), settings)
    one = TEXTS[0]
    hidden = Rows().rows(one.ids)[:6]
    answers = ours(hidden, metadata([len(one.ids)], [one.extra(0.4)], scheduled=[6]))
    assert [tuple(rows.shape) for rows in answers] == [(0, 4)]


@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (1, 3000), (7, 10_000)])
def test_a_profile_run_uses_the_memory_of_a_real_one(
    requests: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config()
    ours = pooler(Library(settings), settings)
    seen: list[Any] = []
    real: Callable[..., Any] = vars(gliner_span)["span_scores"]

    def spy(start: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        seen.append(start.shape)
        return real(start, *arguments, **more)

    monkeypatch.setattr(gliner_span, "span_scores", spy)
    length = tokens // requests
    answers = ours(torch.randn(length * requests, ENCODER), metadata([length] * requests, [None] * requests))
    assert [tuple(rows.shape) for rows in answers] == [(0, 4)] * requests
    assert seen == [(requests * min(length, settings.max_words), 4 * settings.hidden_size)]


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_layout_is_that_of_the_library(switches: dict[str, Any]) -> None:
    settings = config(**switches)
    expected = {name: tuple(tensor.shape) for name, tensor in Library(settings).tensors().items()}
    assert dict(head_layout(ENCODER, settings).shapes) == expected


def test_every_tensor_fills_a_part_of_its_own() -> None:
    settings = config(lstm_layers=2)
    library = Library(settings)
    head = SpanHead(ENCODER, settings)
    for parameter in head.parameters():
        parameter.data.fill_(torch.nan)
    loaded = weight_loading.load(head, library.tensors().items(), head_layout(ENCODER, settings))
    assert loaded == {name for name, _ in head.named_parameters()}
    # only the end's half of the split layer has no bias
    left = {
        name: int(parameter.isnan().sum()) for name, parameter in head.named_parameters() if parameter.isnan().any()
    }
    assert left == {"span_in.bias": 4 * settings.hidden_size}


@pytest.mark.parametrize(
    ("name", "parameter", "part"),
    [
        ("token_rep_layer.projection.bias", "projection.bias", None),
        ("rnn.lstm.weight_hh_l1_reverse", "lstm.1.weight_hidden", 1),
        ("rnn.lstm.bias_ih_l0", "lstm.0.bias_input", 0),
        ("span_rep_layer.span_rep_layer.project_start.0.weight", "marker_in.weight", 0),
        ("span_rep_layer.span_rep_layer.project_end.3.bias", "marker_out.bias", 1),
        ("span_rep_layer.span_rep_layer.out_project.0.weight", "span_in.weight", "columns"),
        ("span_rep_layer.span_rep_layer.out_project.3.weight", "span_out.weight", None),
        ("prompt_rep_layer.3.weight", "prompt_out.weight", None),
    ],
)
def test_the_slot_of_a_tensor(name: str, parameter: str, part: int | str | None) -> None:
    assert slot(name) == (parameter, part)


def test_numbers_that_are_none_are_no_candidates() -> None:
    rows = all_candidates(np.full((3, 2, 2), np.nan, np.float32), threshold=0.0, classes=0)
    assert rows.shape == (0, 4)


@pytest.mark.parametrize("switches", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_warm_up_runs_with_every_head(switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pooler = gliner_span.GlinerSpanPooler(ENCODER, config(**switches))
    tried: list[int] = []
    run = pooler._answer

    def counted(hidden: torch.Tensor, batch: Any) -> list[np.ndarray]:
        tried.append(len(batch.requests))
        return run(hidden, batch)

    monkeypatch.setattr(pooler, "_answer", counted)
    pooler.warm_up(torch.randn(100, ENCODER))
    assert tried == []
    pooler.warm_up(torch.randn(512, ENCODER))
    assert tried == [1, 1, 1, 129]
