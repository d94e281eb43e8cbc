"""The interface between the parity check and a plugin. Standard library and numpy only: the operator's image has no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.artifact.reference import Array, Arrays, Case

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to express a request.

    Attributes:
        name: For findings, e.g. ``pooling-base64``.
        route: The HTTP path.
        encoding: How the answer encodes numbers, as the route calls it.
    """

    name: str
    route: str = "/pooling"
    encoding: str = "float"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit for a metric: ``at_least`` or ``at_most``.

    Attributes:
        metric: The metric's name.
        at_least: The smallest value that passes.
        at_most: The largest value that passes.
        label: What a message calls the metric, e.g. ``max |Δ|``.
        reason: Why the limit is what it is, for the plugin's page.
    """

    metric: str
    at_least: float = -math.inf
    at_most: float = math.inf
    label: str = ""
    reason: str = ""

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is within the limit; a value that is not finite never is."""
        return math.isfinite(value) and self.at_least <= value <= self.at_most

    def badness(self, value: float) -> float:
        """Return a number that is larger the worse ``value`` is."""
        if not math.isfinite(value):
            return math.inf
        return -value if self.at_least > -math.inf else value

    def moved(self, limit: float) -> Threshold:
        """Return the same threshold with another limit."""
        if self.at_least > -math.inf:
            return replace(self, at_least=limit)
        return replace(self, at_most=limit)

    @property
    def limit(self) -> float:
        """The number that a value is compared with."""
        return self.at_least if self.at_least > -math.inf else self.at_most

    def describe(self, value: float) -> str:
        """Return what was measured, for a message."""
        return f"{self.label or self.metric} {value:.2g}, limit {self.limit:g}"


Tolerance = tuple[Threshold, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of one case.

    Attributes:
        metrics: What this case measured; a metric that it cannot measure is left out.
        notes: Differences worth knowing, without any text of the case.
        samples: Numbers by name that are pooled over all cases of a pass.
    """

    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    samples: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


class Parity(Protocol):
    """What a plugin contributes to the parity check: its cases, its requests, and how close answers must be.

    Attributes:
        tolerances: The thresholds by the dtype of the engine, and by the name of each quantization that the plugin has bounds for,
            which replace those of the dtype. Every threshold must have been measured by some case.
    """

    tolerances: Mapping[str, Tolerance]

    def cases(self, checkpoint: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases of a checkpoint and the user's own.

        Args:
            checkpoint: The checkpoint as published.
            inputs: What the user wrote.

        Raises:
            Unsupported: A user's case is not one.
        """

    def variants(self) -> Sequence[Variant]:
        """Return the ways to express requests; the first one can express every case."""

    def group(self, case: Case, variant: Variant) -> object | None:
        """Return what cases must share to be sent in one request; None if the variant cannot express the case."""

    def weight(self, case: Case) -> int:
        """Return as how many texts of a request a case counts."""

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body, without ``model``, for cases of one group."""

    def outputs(self, content: bytes, together: Sequence[Case], variant: Variant) -> list[Any]:
        """Return what the server answered to each of the cases.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """

    def compare(self, case: Case, got: Any, expected: Arrays) -> Compared:
        """Compare the answer to a case with the reference outputs.

        Raises:
            WrongAnswer: The answer has another shape, or a value that is not finite.
        """

    def summarise(self, samples: Mapping[str, NDArray[np.float64]]) -> Mapping[str, float]:
        """Return the metrics of the pooled samples of one pass over all cases; empty where the plugin pools none."""


class WithLabelSetCases(Parity, Protocol):
    """The parity check of a plugin that is prepared with label sets."""

    def label_set_cases(self, sets: Mapping[str, Path]) -> list[Case]:
        """Return a case for each of an artifact's label sets, whose files are given by name."""


__all__ = [
    "Array",
    "Arrays",
    "Case",
    "Compared",
    "Encoding",
    "Parity",
    "Threshold",
    "Tolerance",
    "Variant",
    "WithLabelSetCases",
]
