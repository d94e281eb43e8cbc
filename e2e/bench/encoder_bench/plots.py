"""Draw tables that `python -m encoder_bench visual --table` wrote: a row of bars for each checkpoint, rates over the library's.

`python -m encoder_bench.plots PICTURE.svg TABLE.md ...` needs matplotlib and nothing of ours: `make pictures` provides it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# a colour for each kind of side, apart also for readers who see no red or no green
_COLOURS: Mapping[str, str] = {"ours": "#4477aa", "vllm-factory": "#ee6677", "vllm": "#ccbb44", "": "#bbbbbb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of a table.

    Attributes:
        kind: What was counted, such as `pages`.
        side: Who.
        load: In which batches, or from how many clients.
        rate: A second.
    """

    kind: str
    side: str
    load: str
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, with the plugin, the dtype and the machine that stand above it."""

    about: str
    bars: Sequence[Bar]


def read(text: str) -> Table:
    """Return what a table of `encoder_bench visual` says.

    Raises:
        ValueError: There is no such table.
    """
    lines = text.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    if not rows or rows[0][:4] != ["what", "side", "load", "a second"]:
        raise ValueError("this is not a table of `python -m encoder_bench visual`")
    bars = [Bar(kind=row[0], side=row[1], load=row[2], rate=float(row[3])) for row in rows[2:]]
    about = next(line for line in lines if line and not line.startswith(("`", "|")))
    return Table(about=about.rpartition(", load")[0], bars=bars)


def draw(tables: Sequence[Table], picture: Path) -> None:
    """Write the picture; the same tables give the same bytes."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "encoder", "svg.fonttype": "none", "font.size": 9})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    kinds = sorted({bar.kind for table in tables for bar in table.bars})
    heights = [max(sum(bar.kind == kind for bar in table.bars) for kind in kinds) for table in tables]
    figure, places = pyplot.subplots(
        len(tables),
        len(kinds),
        figsize=(11, 0.28 * sum(heights) + 0.9 * len(tables)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for table, row in zip(tables, places, strict=True):
        for kind, place in zip(kinds, row, strict=True):
            # the first of a row says what the row is about
            about = f"{table.about}: " if kind == kinds[0] else ""
            _bars(place, [bar for bar in table.bars if bar.kind == kind], f"{about}{kind} a second")
    figure.savefig(picture, metadata={"Date": None})


def _bars(place: Any, bars: Sequence[Bar], title: str) -> None:
    place.barh(
        [f"{bar.side.removesuffix(', HTTP')}, {bar.load.removesuffix(' a request')}" for bar in bars],
        [bar.rate for bar in bars],
        color=[_colour(bar.side) for bar in bars],
    )
    for number, (bar, text) in enumerate(zip(bars, labels(bars), strict=True)):
        place.annotate(text, (bar.rate, number), xytext=(3, 0), textcoords="offset points", va="center")
    place.set_title(title, loc="left", fontsize=9)
    place.set_xlim(0, max(bar.rate for bar in bars) * 1.3)
    place.invert_yaxis()
    place.spines[["top", "right"]].set_visible(False)


def labels(bars: Sequence[Bar]) -> list[str]:
    """Return what stands beside each bar of one kind: its rate, and how many times the library's that is."""
    library = next((bar.rate for bar in bars if not bar.side.endswith("HTTP")), None)
    return [f"{bar.rate:.4g}" + ("" if library is None else f" ({bar.rate / library:.1f} ×)") for bar in bars]


def _colour(side: str) -> str:
    return next(colour for start, colour in _COLOURS.items() if side.startswith(start))


def main() -> int:
    """Draw the tables that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("tables", nargs="+", type=Path)
    given = parser.parse_args()
    draw([read(path.read_text(encoding="utf-8")) for path in given.tables], given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
