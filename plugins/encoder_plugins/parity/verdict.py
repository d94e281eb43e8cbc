"""What is asked of a server under test, how answers are compared with the reference, and what the verdict is.

Pure, but for reading the reference; numpy only: the prep image imports it for a plugin's cases. Every case is asked
four times: alone, in one request with others, at the same time as others, and in shuffled batches at the same time. An engine that mixes requests, or whose answers depend on their neighbours, fails here.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.errors import ChecksumMismatch, PrepareError, Unmeasurable, WrongAnswer

Encoding = Literal["float", "base64"]
Array = npt.NDArray[np.float32]
Result = Literal["Passed", "Failed", "Inconclusive"]

AT_ONCE = 16
BATCH = 8
# texts that every plugin takes in one request
MOST_TEXTS = 256
WORST = 5
VERDICT_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a metric may go: ``at_least`` or ``at_most``."""

    metric: str
    at_least: float = -math.inf
    at_most: float = math.inf

    def holds(self, value: float) -> bool:
        """Tell whether ``value`` is within; a value that is not finite never is."""
        return math.isfinite(value) and self.at_least <= value <= self.at_most

    def badness(self, value: float) -> float:
        """Return a number that is larger the worse ``value`` is."""
        if not math.isfinite(value):
            return math.inf
        return -value if self.at_least > -math.inf else value

    def moved(self, limit: float) -> Bound:
        """Return the same bound with another limit."""
        if self.at_least > -math.inf:
            return Bound(self.metric, at_least=limit)
        return Bound(self.metric, at_most=limit)

    @property
    def limit(self) -> float:
        """The number that it is about."""
        return self.at_least if self.at_least > -math.inf else self.at_most


Tolerance = tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of comparing one case: a number for each metric, and what a person might want to know beside."""

    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()


class Parity(Protocol):
    """What a plugin contributes: how its cases are asked, and how close answers must be."""

    tolerances: Mapping[str, Tolerance]
    """Bounds by the number format of the engine."""

    def group(self, case: Mapping[str, Any]) -> object:
        """Return what cases must share to be asked in one request."""

    def weight(self, case: Mapping[str, Any]) -> int:
        """Return as how many texts of a request a case counts."""

    def data(self, together: Sequence[Mapping[str, Any]], encoding: Encoding) -> dict[str, Any]:
        """Return the request data that asks cases of one group."""

    def outputs(self, answer: Any, together: Sequence[Mapping[str, Any]], encoding: Encoding) -> list[Any]:
        """Return what was answered to each of the cases, or raise WrongAnswer."""

    def compare(self, case: Mapping[str, Any], got: Any, expected: Array) -> Compared:
        """Compare what was answered to a case, or raise WrongAnswer."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the original library answered, as the artifact holds it."""

    artifact: str
    digest: str
    plugin: str
    cases: tuple[Mapping[str, Any], ...]
    expected: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases that are asked in one request."""

    cases: tuple[Mapping[str, Any], ...]
    encoding: Encoding


@dataclass(frozen=True, slots=True)
class Pass:
    """One way of asking all cases."""

    name: str
    batches: tuple[Batch, ...]
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one case in one pass."""

    case: str
    asked: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    wrong: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a comparison ended with; ``encode`` gives the termination message."""

    result: Result
    message: str
    artifact: str = ""
    reference: str = ""
    binding: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Mapping[str, str], ...] = ()
    cases: int = 0
    worst: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return the verdict as JSON of at most 2 KiB; the message gives way first."""
        body: dict[str, Any] = {
            "result": self.result,
            "artifact": self.artifact,
            "reference": self.reference,
            "binding": dict(self.binding),
            "metrics": [dict(metric) for metric in self.metrics],
            "cases": self.cases,
            "worst": list(self.worst),
            "message": self.message,
        }
        while len(text := json.dumps(body)) > VERDICT_BYTES:
            if not body["message"]:
                raise ValueError(f"the binding alone takes the verdict beyond {VERDICT_BYTES} bytes")
            body["message"] = body["message"][: -max(1, (len(text) - VERDICT_BYTES) // 6)]
        return text


def read_reference(folder: Path) -> Reference:
    """Read the recorded reference, and check it against the manifest.

    Raises:
        Unmeasurable: It is not there, was changed, or holds no case.
    """
    try:
        manifest = artifact.read(folder)
        files = {entry.path: _checked(folder, entry) for entry in manifest.files if entry.path.startswith("reference/")}
        cases = tuple(json.loads(files[artifact.CASES]))
        expected = load(files[artifact.EXPECTED])
    except (PrepareError, OSError, KeyError, ValueError) as error:
        raise Unmeasurable(f"the artifact's reference can't be read: {error}") from error
    if not cases or {case["id"] for case in cases} != set(expected):
        raise Unmeasurable("the artifact's reference has no cases, or cases without an expected output")
    return Reference(manifest.digest, manifest.reference_digest, manifest.plugin, cases, expected)


def _checked(folder: Path, entry: artifact.FileEntry) -> bytes:
    content = (folder / entry.path).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ChecksumMismatch(f"{entry.path} differs from the manifest")
    return content


def bounds(parity: Parity, dtype: str, overrides: Mapping[str, str]) -> Tolerance:
    """Return the plugin's tolerance for ``dtype`` with some limits replaced.

    Raises:
        ValueError: The plugin has no tolerance for ``dtype``, or no such metric, or a limit is no number.
    """
    if dtype not in parity.tolerances:
        raise ValueError(f"no tolerance for dtype {dtype!r}; there is: {', '.join(parity.tolerances)}")
    tolerance = parity.tolerances[dtype]
    if unknown := set(overrides) - {bound.metric for bound in tolerance}:
        raise ValueError(f"no metric is called {', '.join(sorted(unknown))}")
    limits = {metric: float(limit) for metric, limit in overrides.items()}
    if not all(map(math.isfinite, limits.values())):
        raise ValueError("a threshold must be a finite number")
    return tuple(bound.moved(limits[bound.metric]) if bound.metric in limits else bound for bound in tolerance)


def plan(parity: Parity, cases: Sequence[Mapping[str, Any]]) -> tuple[Pass, ...]:
    """Return the four ways in which all cases are asked."""
    shuffled = list(cases)
    # a fixed seed: the same artifact is always asked in the same order
    random.Random(len(cases)).shuffle(shuffled)
    return (
        Pass("alone", tuple(Batch((case,), "float") for case in cases), 1),
        Pass("together", tuple(Batch(part, "base64") for part in _parts(parity, cases, MOST_TEXTS)), 1),
        Pass("concurrent", tuple(Batch((case,), "base64") for case in reversed(cases)), AT_ONCE),
        Pass(
            "shuffled",
            tuple(Batch(part, "base64") for part in _parts(parity, shuffled, MOST_TEXTS, BATCH)),
            AT_ONCE,
        ),
    )


def _parts(
    parity: Parity, cases: Iterable[Mapping[str, Any]], most_texts: int, most_cases: int = MOST_TEXTS
) -> list[tuple[Mapping[str, Any], ...]]:
    """Sort cases into requests: of one group each, and of so many texts at most, unless one case alone has more."""
    groups: dict[object, list[list[Mapping[str, Any]]]] = {}
    for case in cases:
        parts = groups.setdefault(parity.group(case), [[]])
        texts = sum(map(parity.weight, parts[-1])) + parity.weight(case)
        if parts[-1] and (texts > most_texts or len(parts[-1]) == most_cases):
            parts.append([])
        parts[-1].append(case)
    return [tuple(part) for parts in groups.values() for part in parts]


def examine(parity: Parity, reference: Reference, asked: str, batch: Batch, answer: Any) -> list[Finding]:
    """Compare one answer with what was expected."""
    try:
        got = parity.outputs(answer, batch.cases, batch.encoding)
        if len(got) != len(batch.cases):
            raise WrongAnswer(f"{len(batch.cases)} texts were asked, and {len(got)} answered")
    except WrongAnswer as error:
        return [Finding(case=case["id"], asked=asked, wrong=str(error)) for case in batch.cases]
    return [_compared(parity, reference, asked, case, one) for case, one in zip(batch.cases, got, strict=True)]


def _compared(parity: Parity, reference: Reference, asked: str, case: Mapping[str, Any], got: Any) -> Finding:
    try:
        compared = parity.compare(case, got, reference.expected[case["id"]])
    except WrongAnswer as error:
        return Finding(case=case["id"], asked=asked, wrong=str(error))
    return Finding(case=case["id"], asked=asked, metrics=compared.metrics, notes=compared.notes)


def judge(
    findings: Sequence[Finding], tolerance: Tolerance, reference: Reference, binding: Mapping[str, Any]
) -> Verdict:
    """Turn findings into the verdict."""
    wrong = [finding for finding in findings if finding.wrong is not None]
    measured = [finding for finding in findings if finding.wrong is None]
    outside = [
        finding for finding in measured if not all(bound.holds(finding.metrics[bound.metric]) for bound in tolerance)
    ]
    first = tolerance[0]
    by_badness = sorted(measured, key=lambda finding: first.badness(finding.metrics[first.metric]), reverse=True)
    worst = tuple(dict.fromkeys(finding.case for finding in (*wrong, *outside, *by_badness)))[:WORST]
    metrics = [_metric(bound, measured) for bound in tolerance] if measured else []
    if wrong:
        message = (
            f"{len(wrong)} of {len(findings)} answers are wrong; {wrong[0].case}, {wrong[0].asked}: {wrong[0].wrong}"
        )
    elif outside:
        message = f"{len(outside)} of {len(findings)} answers are outside the tolerance"
    else:
        message = f"all {len(findings)} answers are within the tolerance"
    return Verdict(
        result="Passed" if findings and not wrong and not outside else "Failed",
        message=message,
        artifact=reference.artifact,
        reference=reference.digest,
        binding=binding,
        metrics=tuple(metrics),
        cases=len(reference.cases),
        worst=worst,
    )


def _metric(bound: Bound, measured: Sequence[Finding]) -> dict[str, str]:
    worst = max((finding.metrics[bound.metric] for finding in measured), key=bound.badness)
    return {"name": bound.metric, "value": f"{worst:.9g}", "threshold": f"{bound.limit:g}"}
