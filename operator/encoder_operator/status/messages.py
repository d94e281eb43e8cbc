"""Wording of condition messages and Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 pod` and `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rounded(value: str, threshold: str | None) -> str:
    """Return a measured value with three digits, or with as many as its distance from the threshold needs."""
    try:
        measured, limit = float(value), float(threshold or 0)
    except ValueError:
        return value
    for digits in range(3, 17):
        text = f"{measured:.{digits}g}"
        if abs(float(text) - measured) <= abs(measured - limit) / 100:
            return text
    return value


def parity_message(revision: str, accelerator: str, check: Mapping[str, Any]) -> str:
    """Return a message about a parity check: its `result`, `metrics`, `cases` and `worst` cases.

    Where answers could not be compared (`wrong`), for instance because the engine rejected a request, the metrics of the others say
    nothing about them, and the check's own `message` has the number and the first one.
    """
    passed = check["result"] == "Passed"
    if check.get("wrong") and check.get("message"):
        return f"Revision {revision} on {accelerator} differs from the reference outputs: {check['message']}"
    numbers = ", ".join(
        f"{metric['name']} {_rounded(metric['value'], metric.get('threshold'))}"
        + (f" (threshold {metric['threshold']})" if metric.get("threshold") else "")
        for metric in check.get("metrics", [])
    )
    worst = check.get("worst") or []
    tail = f"; worst: {', '.join(str(case) for case in worst)}" if worst and not passed else ""
    how = "matches the reference outputs within tolerance" if passed else "differs from the reference outputs"
    return f"Revision {revision} on {accelerator} {how}: {numbers} in {plural(check.get('cases', 0), 'case')}{tail}"
