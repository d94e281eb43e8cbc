"""Wording of condition messages and Events."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 pod` and `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
