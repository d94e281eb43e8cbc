"""Draw what `encoder_platform.dashboard` recorded: `python -m encoder_platform.panels RECORD.json FOLDER`.

Writes dashboard.svg, the panels with what Prometheus answered to their queries, in their places; and rollout.svg, a rollout that fails. Needs
matplotlib and nothing of ours: `make dashboard` provides it.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Body = dict[str, Any]
# apart also for readers who see no red or no green
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
_BARS: Mapping[str, str] = {
    "starts": "#ccbb44",
    "waits, gate closed": "#bbbbbb",
    "serves": "#4477aa",
    "compares": "#ee6677",
    "ends": "#e6e6e6",
}
# so many names fit below a panel
_LEGENDS = 6
# numbers in attributes; what is between tags is text
_FINE = re.compile(r"(>[^<]*)|(\d\.\d)\d+")
_COLUMNS, _ROW_INCHES = 24, 0.23
_UNITS: Mapping[str, str] = {"s": "seconds", "reqps": "a second", "ops": "a second"}
_SIZES: Mapping[str, str] = {"bytes": "", "Bps": "/s"}


def _pyplot() -> Any:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "encoder", "svg.fonttype": "none", "font.size": 7, "path.simplify": True}
    )
    return importlib.import_module("matplotlib.pyplot")


def _write(figure: Any, picture: Path) -> None:
    figure.savefig(picture, metadata={"Date": None})
    if picture.suffix == ".svg":
        # a tenth of a point is as fine as a screen shows, and half of the bytes
        text = picture.read_text(encoding="utf-8")
        picture.write_text(_FINE.sub(lambda found: found[1] or found[2], text), encoding="utf-8")


def scaled(unit: str, largest: float) -> tuple[str, float]:
    """Return the name of a panel's unit, and what its values are divided by. Pure."""
    if unit not in _SIZES:
        return _UNITS.get(unit, ""), 1
    power = 0
    while power < 3 and largest >= 1024 ** (power + 1):
        power += 1
    return ("bytes", "KiB", "MiB", "GiB")[power] + _SIZES[unit], 1024**power


def drawn(series: Sequence[Body]) -> list[Body]:
    """Return the series that a panel shows, the largest first: those that are always 0 only if there are no others. Pure."""

    def largest(line: Body) -> float:
        return float(max(value for _, value in line["points"]))

    ordered = sorted(series, key=largest, reverse=True)
    return [line for line in ordered if largest(line) > 0] or ordered


def dashboard(panels: Sequence[Body], picture: Path) -> None:
    """Draw the panels in the places that the dashboard gives them; the same record gives the same bytes."""
    pyplot = _pyplot()
    rows = max(panel["place"]["y"] + panel["place"]["h"] for panel in panels)
    end = max(at for panel in panels for line in panel["series"] for at, _ in line["points"])
    figure = pyplot.figure(figsize=(12, rows * _ROW_INCHES))
    for panel in panels:
        place = panel["place"]
        left, top = place["x"] / _COLUMNS, 1 - place["y"] / rows
        wide, high = place["w"] / _COLUMNS, place["h"] / rows
        if place["h"] == 1:
            figure.text(0.01, top - high / 2, panel["title"], fontsize=10, fontweight="bold", va="center")
            continue
        axes = figure.add_axes((left + 0.035, top - high * 0.68, wide - 0.05, high * 0.54))
        _lines(axes, panel, end / 60)
    _write(figure, picture)


def _lines(axes: Any, panel: Body, minutes: float) -> None:
    series = drawn(panel["series"])
    largest = max((value for line in series for _, value in line["points"]), default=0)
    unit, divisor = scaled(panel["unit"], largest)
    axes.set_title(panel["title"] + (f" ({unit})" if unit else ""), loc="left", fontsize=8)
    for number, line in enumerate(series):
        times, values = zip(*line["points"], strict=True)
        axes.plot(
            [time / 60 for time in times],
            [value / divisor for value in values],
            color=_COLOURS[number % len(_COLOURS)],
            linewidth=1,
            label=line["legend"],
            # a line along the axis is there, too
            clip_on=False,
        )
    if series:
        handles, names = axes.get_legend_handles_labels()
        axes.legend(
            handles[:_LEGENDS], names[:_LEGENDS], loc="upper left", bbox_to_anchor=(-0.02, -0.16), ncols=2,
            fontsize=5.5, frameon=False, borderaxespad=0, labelspacing=0.2, columnspacing=1, handlelength=1.2,
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="#888888")
    axes.set_xlim(0, minutes)
    axes.set_ylim(0, largest / divisor * 1.05 or 1)
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:g} min")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelsize=6, length=2)
    axes.spines[["top", "right"]].set_visible(False)


def rollout(found: Body, picture: Path) -> None:
    """Draw the bars of a rollout above the requests that were answered meanwhile."""
    pyplot = _pyplot()
    rows = list(dict.fromkeys(bar["row"] for bar in found["bars"]))
    figure, (bars, requests) = pyplot.subplots(
        2, 1, figsize=(9, 3.4), height_ratios=(len(rows), 1.6), sharex=True, layout="constrained"
    )
    shown: set[str] = set()
    for bar in found["bars"]:
        what = bar["what"]
        label = None if what in shown else what
        shown.add(what)
        bars.barh(bar["row"], bar["to"] - bar["from"], left=bar["from"], height=0.6, color=_BARS[what], label=label)
    for name, at in found["marks"].items():
        for axes in (bars, requests):
            axes.axvline(at, color="#222222", linewidth=0.8, linestyle=":")
        bars.annotate(name, (at, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=7)
    bars.set_ylim(len(rows) - 0.5, -0.5)
    bars.set_xlim(0, found["seconds"])
    bars.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    times, rates = zip(*found["requests"], strict=True)
    requests.plot(times, rates, color=_BARS["serves"])
    requests.set_ylim(bottom=0)
    requests.set_ylabel("answers a second")
    requests.set_xlabel(f"seconds; {found['sent']} requests, of which {found['failed']} failed")
    for axes in (bars, requests):
        axes.spines[["top", "right"]].set_visible(False)
    _write(figure, picture)


def main() -> int:
    """Draw the record that the first argument names into the folder that the second one names."""
    record, folder = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    dashboard(record["panels"], folder / "dashboard.svg")
    rollout(record["rollout"], folder / "rollout.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
