"""Count EncoderModels by phase and plugin."""

from __future__ import annotations

import sys
from collections import Counter

from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName


class PhaseGauge:
    """Gauge of EncoderModels by phase and plugin."""

    def __init__(self) -> None:
        self._found: dict[NamespacedName, tuple[str, str]] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()

    @property
    def models(self) -> frozenset[NamespacedName]:
        """Return the EncoderModels that are counted."""
        return frozenset(self._found)

    def set(self, key: NamespacedName, phase: str, plugin: str) -> None:
        """Set the phase and plugin of an EncoderModel."""
        now = (sys.intern(phase), sys.intern(plugin))
        before = self._found.get(key)
        if before != now:
            self._found[key] = now
            self._move(before, now)

    def remove(self, key: NamespacedName) -> None:
        """Remove a deleted EncoderModel."""
        self._move(self._found.pop(key, None), None)

    def _move(self, before: tuple[str, str] | None, now: tuple[str, str] | None) -> None:
        for which, change in ((before, -1), (now, 1)):
            if which is not None:
                self._numbers[which] += change
                metrics.MODELS.labels(*which).set(self._numbers[which])
