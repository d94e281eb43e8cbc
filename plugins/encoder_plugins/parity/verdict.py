"""Compare answers with the reference outputs, and judge. Pure.

Passed needs every answer within every threshold, and every threshold measured by some case; what was not measured is
Inconclusive, never Passed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.reference import Case, Reference, first_not_finite
from encoder_plugins.errors import Unmeasurable, WrongAnswer
from encoder_plugins.parity.plan import Batch, lacking
from encoder_plugins.parity.protocol import Parity, Threshold, Tolerance

Result = Literal["Passed", "Failed", "Inconclusive"]

WORST = 5
VERDICT_BYTES = 2048
# stands for the cases together, where a finding is about pooled samples
POOLED = "all cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one case in one pass.

    Attributes:
        case: The case's id, or ``POOLED``.
        sent: The pass.
        metrics: What was measured.
        wrong: Why the answer cannot be compared; None where it was compared.
        notes: Differences worth knowing.
        samples: Numbers to pool over the pass.
    """

    case: str
    sent: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    wrong: str | None = None
    notes: tuple[str, ...] = ()
    samples: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a parity check; ``encode`` gives the termination message.

    Attributes:
        wrong: Answers that cannot be compared: refusals, and those of another shape. The metrics are of the others.
    """

    result: Result
    message: str
    artifact: str = ""
    reference: str = ""
    binding: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Mapping[str, str], ...] = ()
    cases: int = 0
    wrong: int = 0
    worst: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the verdict as JSON of at most 2 KiB; the message is cut first."""
        body: dict[str, Any] = {
            "result": self.result,
            "artifact": self.artifact,
            "reference": self.reference,
            "binding": dict(self.binding),
            "metrics": [dict(metric) for metric in self.metrics],
            "cases": self.cases,
            "worst": list(self.worst),
            "versions": dict(self.versions),
            "message": self.message,
            **({"wrong": self.wrong} if self.wrong else {}),
        }
        while len(text := json.dumps(body)) > VERDICT_BYTES:
            if not body["message"]:
                raise ValueError(f"the binding alone takes the verdict beyond {VERDICT_BYTES} bytes")
            body["message"] = body["message"][: -max(1, (len(text) - VERDICT_BYTES) // 6)]
        return text


def require_finite(reference: Reference) -> None:
    """Refuse a reference that no answer could be compared with.

    Raises:
        Unmeasurable: An expected value is NaN or infinity.
    """
    if found := first_not_finite(reference.expected):
        raise Unmeasurable(
            f"the reference of case {found[0]} ({found[1]}) holds NaN or infinity; prepare the model again"
        )


def tolerance_of(
    parity: Parity, dtype: str, overrides: Mapping[str, str], *, quantization: str | None = None
) -> Tolerance:
    """Return the plugin's tolerance with some limits replaced: that of the quantization if there is one, else that of the dtype.

    Args:
        parity: The plugin's side.
        dtype: The engine's dtype.
        overrides: Limits that replace the plugin's own, by metric.
        quantization: What the engine was started with, such as ``fp8``; None for nothing.

    Raises:
        ValueError: The plugin has no such tolerance, or no such metric, or a limit is not a number.
    """
    mode = quantization or dtype
    if mode not in parity.tolerances:
        kind = "dtype" if quantization is None else "quantization"
        raise ValueError(f"no tolerance for {kind} {mode!r}; there is: {', '.join(parity.tolerances)}")
    tolerance = parity.tolerances[mode]
    metrics = [threshold.metric for threshold in tolerance]
    if unknown := set(overrides).difference(metrics):
        raise ValueError(f"{mode} has no metric {', '.join(sorted(unknown))}; there is: {', '.join(metrics)}")
    limits = {metric: float(limit) for metric, limit in overrides.items()}
    if not all(map(math.isfinite, limits.values())):
        raise ValueError("a threshold must be a finite number")
    return tuple(
        threshold.moved(limits[threshold.metric]) if threshold.metric in limits else threshold
        for threshold in tolerance
    )


def examine(parity: Parity, reference: Reference, sent: str, batch: Batch, content: bytes) -> list[Finding]:
    """Compare one answer with what was expected."""
    try:
        got = parity.outputs(content, batch.cases, batch.variant)
        if len(got) != len(batch.cases):
            raise WrongAnswer(f"the answer has {len(got)} results; the request had {len(batch.cases)} cases")
    except WrongAnswer as error:
        return wrong(batch, sent, error)
    return [_compared(parity, reference, sent, case, one) for case, one in zip(batch.cases, got, strict=True)]


def wrong(batch: Batch, sent: str, error: WrongAnswer) -> list[Finding]:
    """Return the findings of an answer that cannot be compared."""
    return [Finding(case=str(case["id"]), sent=sent, wrong=str(error)) for case in batch.cases]


def _compared(parity: Parity, reference: Reference, sent: str, case: Case, got: Any) -> Finding:
    name = str(case["id"])
    try:
        found = parity.compare(case, got, reference.expected[name])
    except WrongAnswer as error:
        return Finding(case=name, sent=sent, wrong=str(error))
    return Finding(case=name, sent=sent, metrics=found.metrics, notes=found.notes, samples=found.samples)


def pooled(parity: Parity, sent: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return the finding about all cases of one pass together, if the plugin pools samples."""
    names = sorted({name for finding in findings for name in finding.samples})
    samples = {
        name: np.concatenate([finding.samples[name] for finding in findings if name in finding.samples])
        for name in names
    }
    metrics = parity.summarise(samples) if samples else {}
    return [Finding(case=POOLED, sent=sent, metrics=metrics)] if metrics else []


def judge(
    findings: Sequence[Finding], tolerance: Tolerance, reference: Reference, binding: Mapping[str, Any]
) -> Verdict:
    """Return the verdict over all findings."""
    uncomparable = [finding for finding in findings if finding.wrong is not None]
    measured = [finding for finding in findings if finding.wrong is None]
    outside = [finding for finding in measured if _violated(finding, tolerance)]
    unmeasured = [
        threshold.metric for threshold in tolerance if not any(threshold.metric in one.metrics for one in measured)
    ]
    worst = {
        threshold.metric: _worst(threshold, measured) for threshold in tolerance if threshold.metric not in unmeasured
    }
    result: Result
    if uncomparable:
        first = uncomparable[0]
        result = "Failed"
        message = (
            f"{len(uncomparable)} of {len(findings)} answers are wrong; first: case {first.case}, sent {first.sent}:"
            f" {first.wrong}"
        )
    elif outside:
        result = "Failed"
        violated = [
            threshold
            for threshold in tolerance
            if threshold.metric in worst and not threshold.holds(worst[threshold.metric])
        ]
        shown = "; ".join(threshold.describe(worst[threshold.metric]) for threshold in violated)
        message = f"{len(outside)} of {len(findings)} comparisons are outside the tolerance ({shown})"
    elif unmeasured or not measured:
        result = "Inconclusive"
        message = f"no case measured {', '.join(unmeasured) or 'anything'}: add cases of your own that do"
    else:
        result = "Passed"
        shown = "; ".join(threshold.describe(worst[threshold.metric]) for threshold in tolerance)
        message = f"matches the reference within tolerance ({shown})"
    return Verdict(
        result=result,
        message=message,
        artifact=reference.artifact,
        reference=reference.digest,
        binding=binding,
        metrics=tuple(
            _metric(threshold, worst[threshold.metric]) for threshold in tolerance if threshold.metric in worst
        ),
        cases=len(reference.cases),
        wrong=len(uncomparable),
        worst=_worst_cases(uncomparable, outside, measured, tolerance),
    )


def with_quantization(verdict: Verdict, quantization: str | None) -> Verdict:
    """Return the verdict with the quantization whose bounds it was judged by in front of its message."""
    return verdict if quantization is None else replace(verdict, message=f"bounds of {quantization}: {verdict.message}")


def with_limits(verdict: Verdict, recorded: Sequence[Case], sent: Sequence[Case]) -> Verdict:
    """Return the verdict with what the server's limits left out; too few cases cannot pass, but they can fail.

    Args:
        verdict: Of the cases that were sent.
        recorded: The cases of the artifact.
        sent: Those of them that keep the server's limits.
    """
    if (lack := lacking(recorded, sent)) and verdict.result != "Failed":
        # first, because a message that is too long is cut at its end
        message = f"{lack}: raise the server's limits (spec.serving.limits of an EncoderModel); {verdict.message}"
        return replace(verdict, result="Inconclusive", message=message)
    if left_out := len(recorded) - len(sent):
        message = f"{verdict.message}; not sent because of the server's limits: {left_out} of {len(recorded)} cases"
        return replace(verdict, message=message)
    return verdict


def _violated(finding: Finding, tolerance: Tolerance) -> bool:
    return any(
        not threshold.holds(finding.metrics[threshold.metric])
        for threshold in tolerance
        if threshold.metric in finding.metrics
    )


def _worst(threshold: Threshold, measured: Sequence[Finding]) -> float:
    """Return the worst value of a metric that was measured."""
    values = (finding.metrics[threshold.metric] for finding in measured if threshold.metric in finding.metrics)
    return max(values, key=threshold.badness)


def _worst_cases(
    uncomparable: Sequence[Finding], outside: Sequence[Finding], measured: Sequence[Finding], tolerance: Tolerance
) -> tuple[str, ...]:
    """Return the ids of the worst cases: wrong ones, then those outside, then those nearest to the first threshold."""
    first = tolerance[0]
    near = sorted(
        (finding for finding in measured if first.metric in finding.metrics),
        key=lambda finding: first.badness(finding.metrics[first.metric]),
        reverse=True,
    )
    names = (finding.case for finding in (*uncomparable, *outside, *near))
    return tuple(name for name in dict.fromkeys(names) if name != POOLED)[:WORST]


def _metric(threshold: Threshold, value: float) -> dict[str, str]:
    return {"name": threshold.metric, "value": f"{value:.9g}", "threshold": f"{threshold.limit:g}"}
