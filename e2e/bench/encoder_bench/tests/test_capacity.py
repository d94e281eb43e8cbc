"""The lines of a capacity measurement, and the model that is fitted to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from encoder_bench import capacity, capacity_fit, capacity_lines
from encoder_bench.capacity_lines import Cell, Line, Measurement
from encoder_plugins import catalog
from encoder_plugins.sizing.cost_model import Cost

TRUE = Cost(
    request=170, item=60, token=0.1, label=0.8, device_token=0.3, device_pair=2e-4, device_token_label=0.01, overlap=3
)


def _line(cell: Cell, cost: Cost, noise: float = 0.0) -> Line:
    rate = cost.rate(capacity_fit.work(cell)) * (1 + noise)
    return Line(
        cell=cell, seconds=2, requests=round(2 * rate / cell.items), p50_ms=5, p99_ms=9, processor_ms=1.0
    )  # fmt: skip


def _measured(cells: list[Cell], cost: Cost, noise: float = 0.0) -> list[Line]:
    chance = random.Random(3)
    return [_line(cell, cost, noise * chance.uniform(-1, 1)) for cell in cells]


def test_held_out_lines_lie_between_the_fitted_ones() -> None:
    cells = list(capacity_lines.text_cells(capacity.TOKENS, capacity.LABELS, 192_000))
    loaded = [cell for cell in cells if not cell.alone]
    fitted, held_out = ([cell for cell in loaded if cell.held_out is held] for held in (False, True))
    assert len(held_out) >= len(loaded) // 4
    assert not {cell.tokens for cell in fitted} & {cell.tokens for cell in held_out if cell.labels != 10}
    for name in ("tokens", "items", "labels"):
        values = [getattr(cell, name) for cell in fitted]
        assert all(min(values) <= getattr(cell, name) <= max(values) for cell in held_out)
    assert all(cell.items * cell.tokens <= capacity_lines.MOST_TOKENS_A_REQUEST for cell in cells)
    assert len(set(cells)) == len(cells)
    # time may be used up before the last lines: there is a model by then
    assert capacity_fit.fit(_measured(loaded[:14], TRUE)).cost.request > 0


def test_a_known_model_is_found_again_within_the_wanted_error() -> None:
    cells = list(capacity_lines.text_cells(capacity.TOKENS, capacity.LABELS, 192_000))
    exact = capacity_fit.fit(_measured(cells, TRUE))
    assert max(map(abs, exact.held_out)) < 0.03
    noisy = capacity_fit.fit(_measured(cells, TRUE, noise=0.05))
    assert max(map(abs, noisy.held_out)) < 0.15
    # what was measured on an H200, 64 x 1 and 16 x 32 with 85, 341 and 683 tokens: texts a second
    rates = {(1, 85): 4053, (1, 341): 3499, (1, 683): 2556, (32, 85): 12620, (32, 341): 6763, (32, 683): 3285}
    lines = [
        Line(
            cell=Cell(item="text", items=items, tokens=tokens, labels=5, clients=64),
            seconds=items,
            requests=rate,
            p50_ms=1,
            p99_ms=1,
            processor_ms=1,
        )
        for (items, tokens), rate in rates.items()
    ]
    assert max(map(abs, capacity_fit.fit(lines).fitted)) < 0.05


def test_pages_have_a_cost_of_their_own_and_labels_only_where_they_vary() -> None:
    pages = list(capacity_lines.page_cells())
    found = capacity_fit.fit(_measured(pages, Cost(request=2000, item=7000)))
    assert found.cost.request == pytest.approx(2000, rel=0.1)
    assert found.cost.item == pytest.approx(7000, rel=0.1)
    texts = list(capacity_lines.text_cells((32, 64, 128), (), 192_000))
    cost = capacity_fit.fit(_measured(texts, Cost(request=100, item=50, device_token=0.5))).cost
    assert (cost.label, cost.device_label, cost.device_token_label) == (0, 0, 0)
    with pytest.raises(ValueError, match="too few"):
        capacity_fit.fit(_measured(texts[:2], TRUE))


def test_a_line_with_few_answers_is_measured_for_longer_and_not_fitted_to() -> None:
    cell = Cell(item="page", items=8, tokens=0, labels=0, clients=8)
    enough = Line(cell=cell, seconds=2, requests=48, p50_ms=300, p99_ms=500, processor_ms=1)
    assert capacity.longer_line(enough) == (0, 0)
    few = replace(enough, requests=12, p50_ms=1200)
    assert capacity.longer_line(few) == pytest.approx((9.6, 2.4))
    assert capacity.longer_line(replace(few, requests=1, p50_ms=9000)) == (capacity.MOST_SECONDS, 5)
    assert capacity.longer_line(replace(few, requests=0, p50_ms=float("nan"))) == (capacity.MOST_SECONDS, 5)
    lines = _measured(list(capacity_lines.page_cells()), Cost(request=2000, item=7000))
    # half an answer to each client
    hurried = replace(lines[1], requests=4)
    assert capacity_fit.fit([*lines, hurried]).cost == capacity_fit.fit(lines).cost


def test_a_raw_table_is_read_as_it_was_written() -> None:
    cells = list(capacity_lines.text_cells((32, 64, 128), (5, 10, 25), 192_000))
    table = Measurement(
        plugin="deberta_gliner",
        shape="small",
        weights_bytes=3,
        gpu="NVIDIA H200",
        memory_bytes=None,
        setup={"cores": 16},
        lines=_measured(cells, TRUE),
    )
    assert capacity_lines.decode(capacity_lines.encode(table)) == table


def test_every_plugin_that_takes_no_images_has_a_request() -> None:
    for name, plugin in catalog.plugins().items():
        make = capacity.body_of(name)
        assert (make is None) is plugin.takes_images
        if make is not None:
            assert make(["a text"], 5)["texts"] == ["a text"]


@pytest.mark.parametrize(
    ("scores", "expected"), [([0.4], 0.5), ([0.97] * 5, 0.98), ([0.97] * 4, 0.5), ([1.0] * 9, 1.0)]
)
def test_the_threshold_is_the_lowest_that_leaves_few_entities(scores: list[float], expected: float) -> None:
    def results(data: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert len(data["labels"]) == 25
        kept = [score for score in scores if score > data["threshold"]]
        # of the first text, in one list; of the second, by label
        both: list[dict[str, Any]] = [{"entities": kept}, {"entities": {"person": kept, "city": []}}]
        return both[: len(data["texts"])]

    make = capacity.body_of("deberta_gliner")
    assert make is not None
    assert capacity.quiet_threshold(results, make, [["a text"], ["a text", "another"]], 25) == expected


@pytest.mark.parametrize(("most", "expected"), [(512, [32, 512]), (511, [32]), (2_000, [32, 512, 1024]), (8, [32])])
def test_a_length_that_a_model_cuts_is_not_measured(most: int, expected: list[int]) -> None:
    assert capacity.read_whole([32, 512, 1024], most) == expected
