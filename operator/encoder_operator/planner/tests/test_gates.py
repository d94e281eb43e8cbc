"""Which gates are set to what, from states made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from encoder_operator.planner import gates
from encoder_operator.planner.actions import SetGate
from encoder_operator.planner.verification import ParityPolicy, parity_policy
from encoder_operator.state.observed import GateCondition, ObservedState, Platform, Pod, Verdict, parse_pod
from encoder_operator.tests.harness import parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE, ELSEWHERE = Platform("NVIDIA-L4", "sha256:1"), Platform("NVIDIA-H200", "sha256:1")


def pod(gate: GateCondition | None = None, platform: Platform = HERE) -> Pod:
    metadata = {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": "r1"}}
    found = parse_pod({"metadata": metadata, "status": {"phase": "Running"}})
    return replace(found, product=platform.product, image_id=platform.image, gate=gate)


def gate(*, is_open: bool, platform: Platform | None = None, reason: str = "NotVerified") -> GateCondition:
    return GateCondition(open=is_open, reason=reason, message="", platform=platform)


def verdict(
    *, passed: bool, platform: Platform = HERE, thresholds: str = "", age: int = 0, revision: str = "r1"
) -> Verdict:
    return Verdict(
        name=f"{platform.product}-{passed}-{age}",
        revision=revision,
        product=platform.product,
        image=platform.image,
        thresholds=thresholds or parsed_model().thresholds,
        retry="",
        passed=passed,
        data={"result": "Passed" if passed else "Failed", "cases": age},
        created=NOW - timedelta(days=age),
    )


def wanted(found: Pod, *verdicts: Verdict, mode: str = "Enforce") -> GateCondition | None:
    """Return the gate that a pod is given, or None if nothing is written."""
    model = parsed_model({"spec.parity": {"mode": mode}})
    actions = gates.gates_to_set(model, ObservedState(now=NOW, pods=(found,), verdicts=verdicts))
    for action in actions:
        assert (action.pod, action.uid) == (found.name, found.uid)
    return actions[0].gate if actions else None


def opened(found: Pod, *verdicts: Verdict, mode: str = "Enforce") -> tuple[SetGate, ...]:
    policy = parity_policy(parsed_model({"spec.parity": {"mode": mode}}))
    return gates.gates_to_open(policy, ObservedState(now=NOW, pods=(found,), verdicts=verdicts))


@pytest.mark.parametrize(
    ("platform", "recorded", "expected"),
    [
        (HERE, None, HERE),
        (HERE, ELSEWHERE, HERE),
        # the product label or the container is missing for a while: what was recorded stays
        (Platform("", "sha256:1"), ELSEWHERE, ELSEWHERE),
        (Platform("NVIDIA-L4", ""), None, None),
    ],
)
def test_without_parity_checks_a_gate_opens_at_once_and_records_only_a_complete_platform(
    platform: Platform, recorded: Platform | None, expected: Platform | None
) -> None:
    found = wanted(pod(gate(is_open=False, platform=recorded), platform), mode="Disabled")
    assert found is not None
    assert (found.open, found.reason, found.platform) == (True, "Disabled", expected)


def test_a_pod_without_a_product_is_not_verified_whatever_verdicts_there_are() -> None:
    nowhere = Platform("", "sha256:1")
    passed = verdict(passed=True, platform=nowhere)
    assert wanted(pod(platform=nowhere), passed) is None
    closed = wanted(pod(gate(is_open=True, platform=HERE), nowhere), passed)
    assert closed is not None
    assert (closed.open, closed.reason, closed.platform) == (False, "NotVerified", HERE)


def test_a_new_pod_without_a_verdict_gets_no_condition_since_a_missing_one_is_false() -> None:
    assert wanted(pod()) is None
    # one whose image has changed since its gate opened is closed
    changed = wanted(pod(gate(is_open=True, platform=Platform("NVIDIA-L4", "sha256:0"))))
    assert changed is not None
    assert (changed.open, changed.reason) == (False, "NotVerified")


def test_a_gate_is_open_without_a_verdict_only_where_it_was_opened_on_this_platform() -> None:
    kept = wanted(pod(gate(is_open=True, platform=HERE, reason="ParityPassed")))
    assert kept is not None
    assert (kept.open, kept.reason, kept.platform) == (True, "NotVerified", HERE)


@pytest.mark.parametrize(
    ("mode", "verdicts", "expected"),
    [
        ("Enforce", [verdict(passed=True)], (True, "ParityPassed", HERE)),
        ("Enforce", [verdict(passed=True, thresholds="former")], (True, "ParityPassed", HERE)),
        ("Enforce", [verdict(passed=False)], (False, "ParityFailed", ELSEWHERE)),
        ("Warn", [verdict(passed=False)], (True, "ParityFailed", HERE)),
        ("Enforce", [verdict(passed=True, platform=ELSEWHERE)], (False, "NotVerified", ELSEWHERE)),
        ("Enforce", [verdict(passed=True, revision="r2")], (False, "NotVerified", ELSEWHERE)),
        ("Enforce", [verdict(passed=True), verdict(passed=False, platform=ELSEWHERE)], (True, "ParityPassed", HERE)),
    ],
)
def test_the_verdict_for_the_pods_own_platform_decides(
    mode: str, verdicts: list[Verdict], expected: tuple[bool, str, Platform]
) -> None:
    # its gate was opened elsewhere, by an image that is gone
    found = wanted(pod(gate(is_open=False, platform=ELSEWHERE, reason="Before")), *verdicts, mode=mode)
    assert found is not None
    assert (found.open, found.reason, found.platform) == expected


def test_the_message_is_that_of_the_platforms_own_verdict() -> None:
    found = wanted(pod(), verdict(passed=True, age=9), verdict(passed=True, platform=ELSEWHERE))
    assert found is not None
    assert "NVIDIA-L4" in found.message
    assert "NVIDIA-H200" not in found.message


def test_nothing_is_written_that_is_so_already_and_nothing_to_a_pod_that_is_being_deleted() -> None:
    passed = verdict(passed=True)
    found = wanted(pod(), passed)
    assert found is not None
    assert wanted(pod(found), passed) is None
    leaving = replace(pod(), deleting=True)
    assert wanted(leaving, passed) is None
    assert opened(leaving, passed) == ()


def test_while_nothing_else_is_done_gates_are_opened_and_none_is_closed() -> None:
    passed, failed = verdict(passed=True), verdict(passed=False)
    assert [action.gate.open for action in opened(pod(), passed)] == [True]
    assert [action.gate.open for action in opened(pod(gate(is_open=False)), passed)] == [True]
    assert opened(pod(gate(is_open=True, platform=HERE)), passed) == ()
    assert opened(pod(gate(is_open=True, platform=HERE)), failed) == ()
    assert opened(pod(gate(is_open=False)), failed) == ()
    assert opened(pod()) == ()


def test_a_policy_of_a_manifest_without_parity_is_enforced() -> None:
    observed = ObservedState(now=NOW, pods=(pod(),))
    assert gates.gates_to_open(ParityPolicy("Enforce", "t", ""), observed) == ()
    assert len(gates.gates_to_open(ParityPolicy("Disabled", "t", ""), observed)) == 1
