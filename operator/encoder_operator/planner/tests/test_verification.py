"""Which parity check is started, believed, repeated or ended, from states made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import verification
from encoder_operator.planner.actions import Apply, Delete
from encoder_operator.planner.verification import VerificationPlan, VerificationState
from encoder_operator.resources import parity_job
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import (
    FIRST_POD_SECONDS,
    GateCondition,
    Job,
    ObservedState,
    PersistentVolumeClaim,
    Platform,
    Pod,
    Revision,
    Termination,
    Verdict,
    parse_pod,
)
from encoder_operator.status.reasons import Reason
from encoder_operator.tests.harness import SETTINGS, parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE, ELSEWHERE = Platform("NVIDIA-L4", "sha256:1"), Platform("NVIDIA-H200", "sha256:1")
MODEL = parsed_model()


def revision(number: int) -> Revision:
    return Revision(
        hash=f"r{number}",
        inputs_hash=str(number),
        number=number,
        pvc_uid="pvc",
        template={"metadata": {"labels": {}}, "spec": {"containers": [{"name": "engine"}]}},
        pinned={"artifact": {"key": "k", "digest": "d", "reference": "f"}, "claim": "c", "dtype": "float32"},
        created=NOW,
    )


def pod(of: Revision, name: str = "pod", platform: Platform = HERE, age: int = 60) -> Pod:
    metadata = {"name": name, "uid": f"uid-{name}", "labels": {"encoders.dev/revision": of.hash}}
    return replace(
        parse_pod({"metadata": metadata, "status": {"phase": "Running"}}),
        product=platform.product,
        image_id=platform.image,
        containers={"engine": "containerd://1"},
        containers_ready=True,
        ip="10.0.0.1",
        created=NOW - timedelta(seconds=age),
    )


def report(of: Revision, found: Pod, **changes: Any) -> Json:
    """Return what a comparison that passed reports."""
    return {
        "result": "Passed",
        "artifact": "d",
        "reference": "f",
        "binding": parity_job.binding(found, of.hash),
        **changes,
    }


def job(
    of: Revision,
    compared: Pod,
    attempt: int = 1,
    *,
    said: Json | None = None,
    exit_code: int = 0,
    ended: int | None = None,
    annotations: dict[str, str] | None = None,
) -> Job:
    """Return a parity Job: in progress, or ended so many seconds ago, with a report or without."""
    finished = None if ended is None else NOW - timedelta(seconds=ended)
    base = parse_pod({"metadata": {"name": "p", "uid": "p", "labels": {}}, "status": {"phase": "Running"}})
    if said is not None:
        message = json.dumps(said)
        base = replace(
            base, terminated=Termination(exit_code=exit_code, reason="", message=message, finished_at=finished)
        )
    return Job(
        name=f"minilm-{of.hash}-parity-{attempt}",
        uid=f"job-{attempt}",
        revision=of.hash,
        annotations={
            naming.BINDING: json.dumps(parity_job.binding(compared, of.hash)),
            naming.THRESHOLDS: MODEL.thresholds,
            naming.RETRY: MODEL.retry,
            **(annotations or {}),
        },
        created=NOW - timedelta(seconds=1000 - attempt),
        deleting=False,
        complete=finished is not None and said is not None,
        failed="DeadlineExceeded" if finished is not None and said is None else "",
        message="",
        finished_at=finished,
        pods=(base,) if said is not None or finished is None else (),
    )


def verdict(of: Revision, *, passed: bool, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {
        "name": f"{of.hash}-{passed}-{len(changes)}",
        "revision": of.hash,
        "product": HERE.product,
        "image": HERE.image,
        "thresholds": MODEL.thresholds,
        "retry": "",
        "passed": passed,
        "data": {"result": "Passed" if passed else "Failed"},
        "created": NOW,
    }
    return Verdict(**{**fields, **changes})


def plan(
    observed: ObservedState, target: Revision | None, changes: dict[str, Any] | None = None
) -> tuple[VerificationPlan, list[Json], list[str]]:
    """Return the plan, the manifests that it applies, and the names that it deletes."""
    found = verification.plan(parsed_model(changes), observed, target, settings=SETTINGS)
    applied = [action.manifest for action in found.actions if isinstance(action, Apply)]
    return found, applied, [action.name for action in found.actions if isinstance(action, Delete)]


def test_the_oldest_pod_that_can_answer_is_compared() -> None:
    of = revision(1)
    older, newer = pod(of, "older", age=90), pod(of, "newer", age=30)
    useless = [
        replace(pod(of, "ephemeral", age=200), has_ephemeral_containers=True),
        replace(pod(of, "loading", age=200), containers_ready=False),
        replace(pod(of, "no-address", age=200), ip=""),
        replace(pod(of, "no-product", age=200), product=""),
        replace(pod(of, "leaving", age=200), deleting=True),
        pod(revision(9), "of-another", age=200),
    ]
    observed = ObservedState(now=NOW, revisions=(of,), pods=(newer, *useless, older))
    found, (manifest,), deleted = plan(observed, of)
    assert json.loads(manifest["metadata"]["annotations"][naming.BINDING])["uid"] == older.uid
    assert deleted == []
    assert found.running == f"Job {manifest['metadata']['name']} is starting"


@pytest.mark.parametrize("change", [{"spec.parity": {"mode": "Disabled"}}, {"spec.suspend": True}])
def test_nothing_is_compared_that_need_not_be_and_what_runs_is_ended(change: dict[str, Any]) -> None:
    of = revision(1)
    running = job(of, pod(of))
    found, applied, deleted = plan(
        ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(running,)), of, change
    )
    assert (applied, deleted) == ([], [running.name])
    assert (found.running, found.requeue_after) == ("", None)


@pytest.mark.parametrize(
    ("changed", "ended"),
    [
        ({}, False),
        ({naming.THRESHOLDS: "former"}, True),
        ({naming.BINDING: "{}"}, True),
    ],
)
def test_a_running_comparison_ends_when_its_result_would_not_count(changed: dict[str, str], ended: bool) -> None:
    of = revision(1)
    running = job(of, pod(of), annotations=changed)
    _, applied, deleted = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(running,)), of)
    assert deleted == ([running.name] if ended else [])
    # the next one has another name, also if the first one still exists
    assert [manifest["metadata"]["name"] for manifest in applied] == (["minilm-r1-parity-2"] if ended else [])


def test_a_comparison_whose_pod_is_gone_or_changed_is_ended() -> None:
    of = revision(1)
    running = job(of, pod(of))
    for now in (
        replace(pod(of), containers={"engine": "containerd://2"}),
        replace(pod(of), has_ephemeral_containers=True),
        replace(pod(of), deleting=True),
        pod(of, "another"),
    ):
        observed = ObservedState(now=NOW, revisions=(of,), pods=(now,), parity_jobs=(running,))
        assert plan(observed, of)[2] == [running.name]


def test_a_job_without_a_pod_is_read_again_soon_since_events_are_not_watched() -> None:
    of = revision(1)
    running = job(of, pod(of))
    for pods, again in ((running.pods, None), ((), FIRST_POD_SECONDS)):
        observed = ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(replace(running, pods=pods),))
        found, applied, _ = plan(observed, of)
        assert (applied, found.requeue_after) == ([], again)
        assert found.running == f"Job {running.name} is comparing pod pod with the reference outputs"


@pytest.mark.parametrize(
    ("said", "exit_code", "why"),
    [
        ({"result": "Passed"}, 1, "reported Passed but failed with exit code 1"),
        ({"result": "Passed"}, 137, "reported Passed but failed with exit code 137"),
        ({"result": "Passed", "artifact": "other"}, 0, "another artifact or other reference outputs"),
        ({"result": "Passed", "reference": "other"}, 0, "another artifact or other reference outputs"),
        ({"result": "Passed", "binding": {}}, 0, "The pod changed during parity check"),
        ({"result": "passed"}, 0, "was inconclusive"),
        ({"result": "Inconclusive", "message": "no answer"}, 3, "was inconclusive: no answer"),
    ],
)
def test_a_report_that_proves_nothing_makes_no_verdict(said: Json, exit_code: int, why: str) -> None:
    of = revision(1)
    ended = job(of, pod(of), said=report(of, pod(of), **said), exit_code=exit_code, ended=1)
    found, applied, _ = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(ended,)), of)
    assert why in found.inconclusive
    assert applied == []
    # repeated, not at once
    assert found.requeue_after == pytest.approx(4)


@pytest.mark.parametrize(("result", "exit_code"), [("Passed", 0), ("Failed", 1)])
def test_a_report_that_is_believed_is_recorded_once(result: str, exit_code: int) -> None:
    of = revision(1)
    said = report(of, pod(of), result=result, cases=7, message="m", metrics=[1], worst=[2], versions={"vllm": "1"})
    ended = job(of, pod(of), said=said, exit_code=exit_code, ended=1)
    observed = ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(ended,))
    found, (manifest,), _ = plan(observed, of)
    assert manifest["kind"] == "ControllerRevision"
    kept = ("result", "cases", "message", "metrics", "worst", "versions", "artifact", "reference", "binding")
    assert {key: manifest["data"][key] for key in kept} == {key: said[key] for key in kept}
    assert (manifest["data"]["product"], manifest["data"]["ranAt"]) == (HERE.product, "2025-12-31T23:59:59Z")
    state = VerificationState.PASSED if result == "Passed" else VerificationState.FAILED
    assert verification.verification_state(MODEL, found.observed, of.hash, HERE) is state
    assert "wrong" not in manifest["data"]
    # the next reconcile reads the record
    assert plan(found.observed, of)[1] == []


def test_the_number_of_answers_that_cannot_be_compared_is_recorded() -> None:
    of = revision(1)
    said = report(of, pod(of), result="Failed", message="8 of 64 answers are wrong", wrong=8)
    observed = ObservedState(
        now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(job(of, pod(of), said=said, exit_code=1, ended=1),)
    )
    found, (manifest,), _ = plan(observed, of)
    assert manifest["data"]["wrong"] == 8
    (verdict,) = found.observed.verdicts
    assert verification.verdict_message(verdict).endswith(
        "differs from the reference outputs: 8 of 64 answers are wrong"
    )


@pytest.mark.parametrize(("attempts", "pause"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (12, 300)])
def test_comparisons_without_a_result_are_repeated_ever_more_rarely(attempts: int, pause: int) -> None:
    of = revision(1)

    def state(ended: int) -> ObservedState:
        jobs = tuple(job(of, pod(of), number, ended=ended) for number in range(1, attempts + 1))
        return ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=jobs)

    found, applied, _ = plan(state(pause - 1), of)
    assert applied == []
    assert found.requeue_after == pytest.approx(1)
    assert f"minilm-r1-parity-{attempts} ended without a report" in found.inconclusive
    found, (manifest,), _ = plan(state(pause), of)
    assert manifest["metadata"]["name"] == f"minilm-r1-parity-{attempts + 1}"
    assert "ended without a report" in found.inconclusive


def test_attempts_on_another_platform_delay_nothing_and_their_numbers_are_taken() -> None:
    of = revision(1)
    other = pod(of, "other", ELSEWHERE)
    ended = job(of, other, 9999, ended=1)
    _, (manifest,), _ = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of), other), parity_jobs=(ended,)), of)
    # a number must fit a label: the first attempts are long gone
    assert manifest["metadata"]["name"] == "minilm-r1-parity-1"
    assert json.loads(manifest["metadata"]["annotations"][naming.BINDING])["product"] == HERE.product


def test_the_revision_that_serves_is_verified_where_it_was_not_but_not_again_for_thresholds() -> None:
    serving, target = revision(1), revision(2)
    elsewhere = verdict(serving, passed=True, product=ELSEWHERE.product)
    observed = ObservedState(now=NOW, revisions=(serving, target), pods=(pod(serving),), verdicts=(elsewhere,))
    found, (manifest,), _ = plan(observed, target)
    assert manifest["metadata"]["name"] == "minilm-r1-parity-1"
    assert (found.running, found.other is not None) == ("", True)
    stale = verdict(serving, passed=True, thresholds="former")
    assert plan(replace(observed, verdicts=(stale,)), target)[1] == []
    assert len(plan(replace(observed, verdicts=(stale,)), serving)[1]) == 1


def test_the_target_is_compared_before_the_revision_that_serves() -> None:
    serving, target = revision(1), revision(2)
    elsewhere = verdict(serving, passed=True, product=ELSEWHERE.product)
    pods = (pod(serving, "old", age=900), pod(target, "new", age=1))
    observed = ObservedState(now=NOW, revisions=(serving, target), pods=pods, verdicts=(elsewhere,))
    assert [manifest["metadata"]["name"] for manifest in plan(observed, target)[1]] == ["minilm-r2-parity-1"]


def test_a_pod_that_cannot_be_compared_for_an_ephemeral_container_is_named() -> None:
    of = revision(1)
    entered = replace(pod(of), has_ephemeral_containers=True)
    observed = ObservedState(now=NOW, revisions=(of,), pods=(entered,))
    assert "Pod pod has an ephemeral container" in plan(observed, of)[0].inconclusive
    assert plan(replace(observed, verdicts=(verdict(of, passed=True),)), of)[0].inconclusive == ""
    assert plan(replace(observed, pods=(replace(entered, deleting=True),)), of)[0].inconclusive == ""


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # current thresholds come first, then passes, then the newest
        ([{"passed": True, "thresholds": "former"}, {"passed": False}], 1),
        ([{"passed": False}, {"passed": True, "created": NOW - timedelta(days=1)}], 1),
        ([{"passed": True}, {"passed": True, "created": NOW + timedelta(days=1)}], 1),
        ([{"passed": True, "created": NOW + timedelta(days=1)}, {"passed": True}], 0),
    ],
)
def test_the_verdict_to_report(others: list[dict[str, Any]], expected: int) -> None:
    of = revision(1)
    verdicts = tuple(verdict(of, name=str(number), **changes) for number, changes in enumerate(others))
    found = verification.latest_verdict(MODEL, verdicts, of.hash)
    assert found is verdicts[expected]
    assert verification.latest_verdict(MODEL, verdicts, "another") is None


@pytest.mark.parametrize(
    ("annotation", "counts"), [("", True), ("1", True), ("2", False)], ids=["removed", "the same", "new"]
)
def test_a_failure_counts_until_there_is_a_new_retry_annotation(annotation: str, counts: bool) -> None:
    of = revision(1)
    model: EncoderModel = parsed_model({"metadata.annotations": {naming.RETRY: annotation}} if annotation else {})
    for passed, state in ((False, VerificationState.FAILED), (True, VerificationState.PASSED)):
        observed = ObservedState(now=NOW, verdicts=(verdict(of, passed=passed, retry="1"),))
        found = verification.verification_state(model, observed, of.hash, HERE)
        assert found is (state if counts or passed else VerificationState.NONE)


@pytest.mark.parametrize(
    ("reason", "recorded", "platform", "expected"),
    [
        ("ParityPassed", HERE, HERE, HERE),
        # the image has changed since
        ("ParityPassed", Platform(HERE.product, "sha256:0"), HERE, None),
        # an older operator recorded no platform; only without parity checks a gate opens before there is one
        ("ParityPassed", None, HERE, None),
        ("Disabled", None, HERE, HERE),
        ("Disabled", None, Platform("", "sha256:1"), None),
        ("Disabled", None, Platform("NVIDIA-L4", ""), None),
        ("Disabled", ELSEWHERE, HERE, None),
    ],
)
def test_where_a_gate_is_open(
    reason: str, recorded: Platform | None, platform: Platform, expected: Platform | None
) -> None:
    found = pod(revision(1), platform=platform)
    opened = GateCondition(open=True, reason=reason, message="", platform=recorded)
    assert verification.opened_on(replace(found, gate=opened)) == expected
    for closed in (None, replace(opened, open=False)):
        assert verification.opened_on(replace(found, gate=closed)) is None
    assert verification.opened_on(replace(found, gate=opened, deleting=True)) is None


def test_an_attempt_under_former_thresholds_delays_nothing() -> None:
    of = revision(1)
    former = job(of, pod(of), ended=1, annotations={naming.THRESHOLDS: "former"})
    found, applied, deleted = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(former,)), of)
    assert [manifest["metadata"]["name"] for manifest in applied] == ["minilm-r1-parity-2"]
    assert (deleted, found.inconclusive) == ([], "")


@pytest.mark.parametrize(
    ("shared", "name", "free"), [(True, "c", True), (False, "c", False), (True, "another", False), (None, "", False)]
)
def test_a_comparison_runs_anywhere_only_if_its_own_volume_can_be_mounted_anywhere(
    shared: bool | None, name: str, free: bool
) -> None:
    template = revision(1).template
    of = replace(revision(1), template={**template, "metadata": {"labels": {naming.CLAIM: "c"}}})
    pvc = None
    if shared is not None:
        pvc = PersistentVolumeClaim(name=name, uid="u", bound=True, shared=shared, message="", live={})
    _, (manifest,), _ = plan(ObservedState(now=NOW, pvc=pvc, revisions=(of,), pods=(pod(of),)), of)
    # pods of one volume find each other by this label
    assert (naming.CLAIM not in manifest["spec"]["template"]["metadata"]["labels"]) is free


def test_a_comparison_that_cannot_start_says_why() -> None:
    of = revision(1)
    running = job(of, pod(of))
    stuck = replace(running.pods[0], waiting_reason="ImagePullBackOff", waiting_message="no such image")
    for current, why in (
        (replace(running, pods=(stuck,)), "no such image"),
        (replace(running, pods=(), rejection="exceeded quota"), "exceeded quota"),
    ):
        found, _, _ = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(current,)), of)
        assert found.running.startswith(f"Job {running.name} for pod pod cannot start: ")
        assert why in found.running


@pytest.mark.parametrize(
    ("message", "expected"),
    [("", "ended without a report"), ("over its deadline", "ended without a report: over its deadline")],
)
def test_a_comparison_without_a_report_gives_the_jobs_reason(message: str, expected: str) -> None:
    of = revision(1)
    ended = replace(job(of, pod(of), ended=1), message=message)
    found, _, _ = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(ended,)), of)
    assert found.inconclusive == f"Job {ended.name} {expected}"


@pytest.mark.parametrize(
    ("message", "expected"),
    [("", "exit code 137"), ("  Traceback: x\n", "Traceback: x"), ("a" * 5000 + "the end", "a" * 293 + "the end")],
)
def test_of_a_comparison_that_crashed_the_end_of_its_output_is_shown(message: str, expected: str) -> None:
    of = revision(1)
    ended = job(of, pod(of), said={}, ended=1)
    terminated = Termination(exit_code=137, reason="Error", message=message, finished_at=NOW)
    crashed = replace(ended, pods=(replace(ended.pods[0], terminated=terminated),))
    found, _, _ = plan(ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=(crashed,)), of)
    assert found.inconclusive == f"Job {ended.name} was inconclusive: {expected}"


def test_a_running_comparison_is_reported_for_its_own_revision() -> None:
    serving, target = revision(1), revision(2)
    observed = ObservedState(
        now=NOW,
        revisions=(serving, target),
        pods=(pod(serving, "old"), pod(target, "new")),
        verdicts=(verdict(serving, passed=True, product=ELSEWHERE.product),),
    )
    of_target = plan(replace(observed, parity_jobs=(job(target, pod(target, "new")),)), target)[0]
    assert (bool(of_target.running), of_target.other) == (True, None)
    of_serving = plan(replace(observed, parity_jobs=(job(serving, pod(serving, "old")),)), target)[0]
    assert of_serving.other is not None
    assert (of_serving.running, of_serving.other.reason) == ("", "ParityRunning")


def test_an_inconclusive_comparison_of_the_revision_that_serves_is_no_running_one() -> None:
    serving, target = revision(1), revision(2)
    elsewhere = verdict(serving, passed=True, product=ELSEWHERE.product)
    ended = job(serving, pod(serving), ended=1)
    observed = ObservedState(
        now=NOW, revisions=(serving, target), pods=(pod(serving),), verdicts=(elsewhere,), parity_jobs=(ended,)
    )
    found, applied, _ = plan(observed, target)
    assert (applied, found.running, found.inconclusive) == ([], "", "")
    assert found.other == (Reason.INCONCLUSIVE, f"Job {ended.name} ended without a report")


def test_a_verdict_is_recorded_beside_a_comparison_without_one() -> None:
    of = revision(1)
    ended = [job(of, pod(of), ended=9), job(of, pod(of), 2, said=report(of, pod(of)), ended=1)]
    observed = ObservedState(now=NOW, revisions=(of,), pods=(pod(of),), parity_jobs=tuple(ended))
    assert [manifest["kind"] for manifest in plan(observed, of)[1]] == ["ControllerRevision"]


def test_an_ephemeral_container_of_another_revision_is_not_named() -> None:
    of, other = revision(1), revision(2)
    entered = replace(pod(other), has_ephemeral_containers=True)
    observed = ObservedState(now=NOW, revisions=(of, other), pods=(entered,))
    assert plan(observed, of)[0].inconclusive == ""
    assert plan(observed, None)[0].inconclusive == ""


def test_the_pod_with_an_ephemeral_container_is_named_among_others() -> None:
    of = revision(1)
    entered = replace(pod(of, "entered", ELSEWHERE), has_ephemeral_containers=True)
    verified = verdict(of, passed=True)
    observed = ObservedState(now=NOW, revisions=(of,), pods=(pod(of), entered), verdicts=(verified,))
    assert plan(observed, of)[0].inconclusive.startswith("Pod entered has an ephemeral container")
