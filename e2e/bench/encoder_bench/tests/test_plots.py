"""Tables become bars, and the committed picture is of the committed tables."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from encoder_bench import plots, visual
from encoder_bench.plots import Bar

DOCS = Path(__file__).parents[4] / "docs"


def test_a_table_is_read_as_the_command_writes_it() -> None:
    rows = [
        visual.Row(kind="pages", side=visual.LIBRARY, load="batches of 8", rate=20, rows=7),
        visual.Row(kind="pages", side="ours, HTTP", load="8 clients x 1 a request", rate=50, rows=7, notes="p50 1 ms"),
    ]
    text = "\n".join(["`a command`\n", "colqwen3, bfloat16, a GPU, 16 cores, load 3.6\n", *visual.table(rows)])
    table = plots.read(text)
    assert table.about == "colqwen3, bfloat16, a GPU, 16 cores"
    assert table.bars == [Bar(kind=row.kind, side=row.side, load=row.load, rate=row.rate) for row in rows]
    assert plots.labels(table.bars) == ["20 (1.0 ×)", "50 (2.5 ×)"]


def test_a_file_without_such_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not a table of"):
        plots.read("| a | b |\n|---|---|\n")


def test_the_picture_is_of_the_tables() -> None:
    picture = (DOCS / "pictures" / "visual.svg").read_text(encoding="utf-8")
    files = sorted((DOCS / "measurements").glob("*.md"))
    assert files
    for file in files:
        table = plots.read(file.read_text(encoding="utf-8"))
        assert table.about in picture
        for _, bars in groupby(table.bars, lambda bar: bar.kind):
            assert all(f">{label}</text>" in picture for label in plots.labels(list(bars)))
