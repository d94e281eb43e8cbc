"""The sizing page and its data are of the committed tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from encoder_bench import capacity_lines
from encoder_bench.capacity_lines import Line, Measurement
from encoder_platform import sizing_page
from encoder_plugins.sizing import capacity
from encoder_plugins.sizing.cost_model import Cost, Work

COST = Cost(request=170, item=60, token=0.1, label=0.8, device_token=0.3, device_token_label=0.01, overlap=2)
SETUP = {"date": "2026-11-25", "dtype": "bfloat16", "engines": 4, "api_servers": 3, "cores": 16, "versions": {"vllm": "0.32.0"}}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cells = list(capacity_lines.text_cells((32, 64, 128, 256, 512), (5, 10, 25), 192_000))
    lines = [
        Line(
            cell=cell,
            seconds=100,
            requests=round(
                100 * COST.rate(Work(items=cell.items, tokens=cell.tokens, labels=cell.labels)) / cell.items
            ),
            p50_ms=4.2,
            p99_ms=9,
            processor_ms=1,
        )
        for cell in cells
    ]
    table = Measurement(
        plugin="deberta_gliner",
        shape="small",
        weights_bytes=300 << 20,
        gpu="NVIDIA H200",
        memory_bytes=3 << 30,
        setup=SETUP,
        lines=lines,
    )
    found = tmp_path / "docs" / "measurements" / "capacity"
    (found / "nvidia-h200").mkdir(parents=True)
    (found / "nvidia-h200" / "deberta_gliner-small.json").write_text(capacity_lines.encode(table))
    return found


def test_page_and_data_come_from_the_tables(folder: Path) -> None:
    (entry,) = sizing_page.entries(list(sizing_page.raw(folder)), {})
    assert entry.worst_error is not None
    assert entry.worst_error < 0.03
    assert (entry.measured["tokens"], entry.alone_ms) == ((32, 512), {"32": 4.2, "512": 4.2})
    assert capacity.parse(sizing_page.data([entry])) == (entry,)
    page = sizing_page.page([entry])
    assert "(measurements/capacity/nvidia-h200/deberta_gliner-small.json)" in page
    assert "| `deberta_gliner` | small | NVIDIA H200 | 64 | 5 |" in page


def test_a_changed_table_has_another_model(folder: Path) -> None:
    tables = list(sizing_page.raw(folder))
    (entry,) = sizing_page.entries(tables, {})
    known = {(entry.digest, entry.item): replace(entry.cost, item=500.0)}
    (kept,) = sizing_page.entries(tables, known)
    assert kept.worst_error is not None
    assert kept.worst_error > 0.15
    assert "above 15%" in sizing_page.page([kept])
    path = next(folder.rglob("*.json"))
    path.write_text(path.read_text().replace('"seconds": 100', '"seconds": 101', 1))
    (other,) = sizing_page.entries(list(sizing_page.raw(folder)), known)
    assert other.cost != kept.cost


def test_nothing_measured_is_reported_and_tiny_shapes_are_refused(folder: Path) -> None:
    assert "Nothing has been measured" in sizing_page.page([])
    path = next(folder.rglob("*.json"))
    path.write_text(path.read_text().replace('"shape": "small"', '"shape": "tiny"'))
    with pytest.raises(ValueError, match="tiny"):
        list(sizing_page.raw(folder))


@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_a_table_whose_model_is_committed_is_not_fitted_again(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would differ in the last digit on another processor
    monkeypatch.setattr("encoder_bench.capacity_fit.fit", lambda _: pytest.fail("it is fitted"))
    before = sizing_page.PAGE.read_bytes(), sizing_page.DATA.read_bytes()
    assert sizing_page.main(arguments) == 0
    assert (sizing_page.PAGE.read_bytes(), sizing_page.DATA.read_bytes()) == before
