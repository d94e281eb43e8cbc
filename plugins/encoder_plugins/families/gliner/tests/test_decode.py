"""Which candidates are entities, against the library's decoder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_plugins.families.gliner import decode
from encoder_plugins.families.gliner.tests.library import call, spread

Found = list[tuple[int, int, str, float]]

SHAPES = ((1, 1, 1), (2, 6, 3), (12, 1, 2), (9, 4, 5), (30, 12, 4), (7, 40, 2))
SWITCHES = tuple(itertools.product((True, False), repeat=2))


@pytest.fixture(scope="module", autouse=True, params=[0, 1 << 30], ids=["as arrays", "one by one"])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways through the candidates, each with all cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "FEW", request.param)
        yield


def by_library(
    logits: torch.Tensor, *, words: int, spans: list[tuple[int, int]] | None = None, **options: Any
) -> Found:
    found: Found = call(
        "decode",
        logits.numpy(),
        words=words,
        names={number + 1: f"label {number}" for number in range(logits.shape[-1])},
        flat_ner=options["flat"],
        threshold=options["threshold"],
        multi_label=options["multi_label"],
        spans=spans,
    )
    return found


def by_us(
    logits: torch.Tensor,
    *,
    words: int,
    order: np.random.Generator | None = None,
    spans: list[tuple[int, int]] | None = None,
    **options: Any,
) -> Found:
    probabilities = torch.sigmoid(logits)
    start, width, label = (index.numpy() for index in torch.where(probabilities >= options["threshold"] - 1e-6))
    score = probabilities.numpy()[start, width, label]
    if order is not None:
        # the device's order is its own
        shuffled = order.permutation(len(start))
        start, width, label, score = start[shuffled], width[shuffled], label[shuffled], score[shuffled]
    rows = decode.keep(start, width, label, score, words=words, allowed=spans, **options)
    return [(int(start[row]), int(start[row] + width[row]), f"label {label[row]}", float(score[row])) for row in rows]


@pytest.mark.parametrize(("flat", "multi_label"), SWITCHES)
@pytest.mark.parametrize("threshold", [0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_entities_are_the_library_s(
    shape: tuple[int, int, int], threshold: float, flat: bool, multi_label: bool
) -> None:
    options: dict[str, Any] = {"threshold": threshold, "flat": flat, "multi_label": multi_label}
    for seed in range(6):
        # every second table has many ties
        logits = (
            spread(seed, *shape) if seed % 2 else torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
        )
        expected = by_library(logits, words=shape[0], **options)
        assert by_us(logits, words=shape[0], **options) == expected
        assert by_us(logits, words=shape[0], order=np.random.default_rng(seed), **options) == expected


@pytest.mark.parametrize(("flat", "multi_label"), SWITCHES)
def test_input_spans_are_the_library_s(flat: bool, multi_label: bool) -> None:
    options: dict[str, Any] = {"threshold": 0.3, "flat": flat, "multi_label": multi_label}
    logits = spread(5, 12, 4, 3)
    every = list(itertools.combinations_with_replacement(range(12), 2))
    for spans in ([], [(0, 0)], [(0, 11)], [(3, 4), (3, 4), (3, 5), (4, 6)], every, every[::3]):
        assert by_us(logits, words=12, spans=spans, **options) == by_library(logits, words=12, spans=spans, **options)


def test_a_score_that_is_the_threshold_is_none() -> None:
    # 0.3 as float32 is above 0.3; the library compares in float32
    for threshold in (0.3, 0.5, 0.7, 0.1):
        score = np.array([threshold], np.float32)
        above = np.nextafter(score, np.float32(1))
        zero = np.zeros(1, np.int64)
        options: dict[str, Any] = {"words": 1, "threshold": threshold, "flat": True, "multi_label": False}
        assert torch.where(torch.from_numpy(score) > threshold)[0].tolist() == []
        assert decode.keep(zero, zero, zero, score, **options).tolist() == []
        assert decode.keep(zero, zero, zero, above, **options).tolist() == [0]


def test_nothing_gives_nothing() -> None:
    none = np.zeros(0, np.int64)
    found = decode.keep(none, none, none, np.zeros(0, np.float32), words=5, threshold=0.5, flat=True, multi_label=False)
    assert found.tolist() == []


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 0.5]),
    st.sampled_from(SWITCHES),
)
def test_any_table_gives_the_library_s_entities(
    words: int, widths: int, labels: int, seed: int, threshold: float, switches: tuple[bool, bool]
) -> None:
    options: dict[str, Any] = {"threshold": threshold, "flat": switches[0], "multi_label": switches[1]}
    logits = spread(seed, words, widths, labels)
    assert by_us(logits, words=words, **options) == by_library(logits, words=words, **options)


@pytest.mark.parametrize(("flat", "multi_label"), SWITCHES)
def test_the_search_reads_each_span_once(monkeypatch: pytest.MonkeyPatch, flat: bool, multi_label: bool) -> None:
    # 384 words, 12 widths, 25 labels: 115 200 candidates, which the library compares with each other
    name = "disjoint" if flat else "nested"
    search = getattr(decode, name)
    looked_at: list[tuple[int, int]] = []

    def counted(spans: Iterable[tuple[int, int]], words: int) -> Iterator[bool]:
        looked_at.extend(spans)
        yield from search(iter(looked_at), words)

    monkeypatch.setattr(decode, name, counted)
    logits = torch.randn((384, 12, 25), generator=torch.Generator().manual_seed(1))
    found = by_us(logits, words=384, threshold=0.0, flat=flat, multi_label=multi_label)
    assert len(looked_at) == len(set(looked_at)) == 384 * 12 - 11 * 12 // 2
    assert {(start, end) for start, end, _, _ in found} <= set(looked_at)
    assert len(found) >= 384 / 12
