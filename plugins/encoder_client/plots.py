"""What a benchmark measured, as text and as a picture. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

PERCENTILES = (50, 90, 95, 99, 100)
_BINS = 12
_BAR = 40
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 320, 60, 40, 20, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the clients of a benchmark saw.

    Attributes:
        seconds: Of the whole measurement.
        latencies: Seconds of each answered request, in no order.
        texts: Texts of each request.
        failed: Requests that were not answered, by the name of the error.
    """

    seconds: float
    latencies: Sequence[float]
    texts: int
    failed: dict[str, int]

    def percentile(self, percent: float) -> float:
        """Return the seconds within which this share of the requests was answered; raises ValueError where none was."""
        if not self.latencies:
            raise ValueError("no request was answered")
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    def summary(self) -> dict[str, object]:
        """Return the numbers by name; milliseconds, requests and texts a second."""
        answered = len(self.latencies)
        found: dict[str, object] = {
            "requests": answered,
            "seconds": round(self.seconds, 3),
            "requests_per_second": round(answered / self.seconds, 2),
            "texts_per_second": round(answered * self.texts / self.seconds, 2),
            "failed": dict(self.failed),
        }
        if answered:
            found |= {name(percent): round(self.percentile(percent) * 1000, 3) for percent in PERCENTILES}
        return found


def name(percent: int) -> str:
    """Return what a percentile is called."""
    return "max_ms" if percent == 100 else f"p{percent}_ms"


def histogram(latencies: Sequence[float], bins: int = _BINS) -> list[tuple[float, float, int]]:
    """Return bounds and number of the requests of each bin: equal steps from the fastest to the slowest request, in seconds."""
    low, high = min(latencies), max(latencies)
    step = (high - low) / bins or 1e-6
    counts = [0] * bins
    for latency in latencies:
        counts[min(bins - 1, int((latency - low) / step))] += 1
    return [(low + step * number, low + step * (number + 1), count) for number, count in enumerate(counts)]


def text(measured: Measured) -> str:
    """Return the numbers and a histogram, for a terminal."""
    lines = [f"{key:20} {value}" for key, value in measured.summary().items() if key != "failed"]
    lines += [f"failed               {count} {error}" for error, count in sorted(measured.failed.items())]
    if measured.latencies:
        bars = histogram(measured.latencies)
        most = max(count for _, _, count in bars)
        lines.append("")
        lines += [
            f"{low * 1000:9.1f} to {high * 1000:9.1f} ms  {count:6}  {'#' * math.ceil(count / most * _BAR)}".rstrip()
            for low, high, count in bars
        ]
    return "\n".join(lines)


def svg(measured: Measured, title: str) -> str:
    """Return a histogram of the latencies with lines at the percentiles; raises ValueError where no request was answered."""
    longest = measured.percentile(100)
    bars = histogram(measured.latencies, bins=40)
    most = max(count for _, _, count in bars)
    start, span = bars[0][0], (bars[-1][1] - bars[0][0])

    def across(seconds: float) -> float:
        return _LEFT + (seconds - start) / span * (_WIDTH - _LEFT - _RIGHT)

    def down(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / most * (_HEIGHT - _TOP - _BOTTOM)

    floor = _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for low, high, count in bars:
        width = max(1.0, across(high) - across(low) - 1)
        parts.append(
            f'<rect x="{across(low):.1f}" y="{down(count):.1f}" width="{width:.1f}"'
            f' height="{floor - down(count):.1f}" fill="#4477aa"/>'
        )
    for percent in PERCENTILES[:-1]:
        x, y = across(measured.percentile(percent)), _TOP + 10 * PERCENTILES.index(percent)
        parts.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{floor}" stroke="#cc3311" stroke-dasharray="3"/>')
        label = f"p{percent} {measured.percentile(percent) * 1000:.1f} ms"
        anchor = "end" if x > _WIDTH - 120 else "start"
        parts.append(
            f'<text x="{x + (-3 if anchor == "end" else 3):.1f}" y="{y + 8}" text-anchor="{anchor}">{label}</text>'
        )
    parts += [
        f'<line x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - _RIGHT}" y2="{floor}" stroke="black"/>',
        f'<text x="{_LEFT}" y="{floor + 16}">{start * 1000:.1f} ms</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{floor + 16}" text-anchor="end">{longest * 1000:.1f} ms</text>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{most}</text>',
        f'<text x="{_LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
        f"latency of {len(measured.latencies)} requests</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
