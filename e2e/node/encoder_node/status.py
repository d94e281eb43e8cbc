"""How a cluster is, whichever kind it is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """How a cluster is."""

    up: bool
    """Whether it can be used."""
    lines: tuple[str, ...]
    """What else a user wants to know."""
