"""Draw the picture of docs/concepts.md: `python -m encoder_platform.diagrams PICTURE.svg`.

Needs matplotlib and nothing of ours: `make pictures` provides it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def concepts(picture: Path) -> None:
    """Draw the way from a checkpoint to an endpoint: boxes for what there is, arrows for what acts."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "encoder", "svg.fonttype": "none"})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(9, 2.6), layout="constrained")
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 30)
    boxes = {
        "checkpoint\nat a pinned commit": (9, 22, "#eeeeee"),
        "artifact\nweights, reference outputs,\ndigest of each file": (36, 22, "#dde8f3"),
        "revision\npods with a closed gate": (64, 22, "#dde8f3"),
        "endpoint\npods with an open gate": (91, 22, "#d5ead8"),
        "verdict\nPassed, Failed, Inconclusive": (64, 5, "#f6e3e5"),
    }
    for text, (x, y, colour) in boxes.items():
        name, _, rest = text.partition("\n")
        axes.text(
            x, y, f"{name}\n{rest}", ha="center", va="center", fontsize=8, linespacing=1.4,
            bbox={"boxstyle": "round,pad=0.6", "facecolor": colour, "edgecolor": "#666666"},
        )  # fmt: skip
    arrows = (
        ((18, 22), (25.5, 22), "prep Job", (21.5, 24)),
        ((46.5, 22), (54.5, 22), "pods load it", (50.5, 24)),
        ((64, 18), (64, 9), "parity Job:\nanswers against\nreference outputs", (65, 13.5)),
        ((73, 7), (88, 18), "Passed: the gate opens", (82, 11)),
        ((55, 5), (38, 5), "Failed: no traffic; the verified revision serves on", (37, 5)),
    )
    for start, end, text, place in arrows:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#444444"})
        beside = "right" if end[0] < start[0] else ("left" if place[0] > 60 else "center")
        axes.text(*place, text, ha=beside, va="center", fontsize=7, color="#444444")
    figure.savefig(picture, metadata={"Date": None})


def main() -> int:
    """Draw the picture that the argument names."""
    concepts(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
