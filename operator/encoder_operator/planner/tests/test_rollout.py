"""Which revision the Deployment runs, and which records are kept, from states made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator.planner import rollout
from encoder_operator.planner.actions import Delete
from encoder_operator.planner.rollout import RolloutPlan
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Deployment, ObservedState, Pod, Revision, Verdict, parse_pod
from encoder_operator.tests.harness import parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def revision(number: int) -> Revision:
    return Revision(
        hash=f"r{number}",
        inputs_hash=str(number),
        number=number,
        pvc_uid="pvc",
        template={"metadata": {"labels": {}}, "spec": {}},
        pinned={"artifact": {}},
        created=NOW,
    )


def verdict(model: EncoderModel, of: Revision, *, passed: bool) -> Verdict:
    return Verdict(
        name=f"minilm-{of.hash}-verdict",
        revision=of.hash,
        product="cpu",
        image="sha256:1",
        thresholds=model.thresholds,
        retry="",
        passed=passed,
        data={"result": "Passed" if passed else "Failed"},
        created=NOW,
    )


def pod(of: Revision, *, ready: bool = True) -> Pod:
    labels = {"encoders.dev/revision": of.hash}
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {"name": f"pod-{of.hash}", "uid": of.hash, "labels": labels}
    return parse_pod({"metadata": metadata, "status": {"phase": "Running", "conditions": conditions}})


def deployment(of: Revision) -> Deployment:
    return Deployment(revision=of.hash, replicas=1, replica_failure="", live={"metadata": {}})


def plan(observed: ObservedState, target: Revision, changes: dict[str, Any] | None = None) -> RolloutPlan:
    return rollout.plan(parsed_model(changes), observed, target)


def test_a_failed_update_goes_back_to_the_revision_that_serves_rather_than_to_a_newer_one() -> None:
    model, (serving, newer, failed) = parsed_model(), [revision(number) for number in (1, 2, 3)]
    verdicts = tuple(verdict(model, found, passed=found is not failed) for found in (serving, newer, failed))
    observed = ObservedState(now=NOW, revisions=(serving, newer, failed), verdicts=verdicts, pods=(pod(serving),))
    found = plan(observed, failed)
    assert (found.deployed, found.active, found.replicas) == (serving, serving, 1)


@pytest.mark.parametrize("leaving", [True, False], ids=["being deleted", "not ready"])
def test_a_pod_that_receives_no_traffic_makes_no_revision_the_one_that_serves(leaving: bool) -> None:
    model, (serving, newer, failed) = parsed_model(), [revision(number) for number in (1, 2, 3)]
    verdicts = tuple(verdict(model, found, passed=found is not failed) for found in (serving, newer, failed))
    pods = (pod(serving), replace(pod(newer, ready=leaving), deleting=leaving))
    observed = ObservedState(now=NOW, revisions=(serving, newer, failed), verdicts=verdicts, pods=pods)
    found = plan(observed, failed)
    assert (found.deployed, found.active) == (serving, serving)


def test_a_failed_update_goes_back_to_the_newest_verified_revision_if_none_serves() -> None:
    model, (older, newer, failed) = parsed_model(), [revision(number) for number in (1, 2, 3)]
    verdicts = tuple(verdict(model, found, passed=found is not failed) for found in (older, newer, failed))
    observed = ObservedState(now=NOW, revisions=(older, newer, failed), verdicts=verdicts)
    assert plan(observed, failed).deployed == newer


@pytest.mark.parametrize("newer_failed", [True, False], ids=["failed", "never verified"])
def test_a_failed_update_goes_back_to_no_revision_that_may_not_serve(newer_failed: bool) -> None:
    model, (verified, newer, failed) = parsed_model(), [revision(number) for number in (1, 2, 3)]
    verdicts = [verdict(model, verified, passed=True), verdict(model, failed, passed=False)]
    verdicts += [verdict(model, newer, passed=False)] if newer_failed else []
    observed = ObservedState(now=NOW, revisions=(verified, newer, failed), verdicts=tuple(verdicts))
    found = plan(observed, failed)
    assert (found.deployed, found.replicas) == (verified, 1)
    # nothing is deployed where no revision may serve
    nothing = plan(ObservedState(now=NOW, revisions=(newer, failed), verdicts=tuple(verdicts[1:])), failed)
    assert (nothing.deployed, nothing.replicas, nothing.active) == (failed, 0, None)


def test_a_suspended_model_keeps_its_template_so_that_resuming_starts_no_rollout() -> None:
    model, (deployed, verified) = parsed_model(), [revision(number) for number in (1, 2)]
    verdicts = tuple(verdict(model, found, passed=True) for found in (deployed, verified))
    observed = ObservedState(
        now=NOW, revisions=(deployed, verified), verdicts=verdicts, deployment=deployment(deployed)
    )
    assert plan(observed, verified).deployed == verified
    found = plan(observed, verified, {"spec.suspend": True})
    assert (found.deployed, found.replicas) == (deployed, 0)
    # nor does it roll back while it has no pods
    refused = (verdict(model, deployed, passed=False), *verdicts[1:])
    found = plan(replace(observed, verdicts=refused), deployed, {"spec.suspend": True})
    assert (found.deployed, found.replicas) == (deployed, 0)
    # the Deployment's revision has no record, or there is no Deployment, and none is made
    unknown = replace(observed, deployment=replace(deployment(deployed), revision="unknown"))
    assert plan(unknown, verified, {"spec.suspend": True}).deployed == verified
    absent = plan(replace(observed, deployment=None), verified, {"spec.suspend": True})
    assert (absent.deployed, absent.replicas, absent.actions) == (None, 0, ())


@pytest.mark.parametrize("kept_by", ["pod", "leaving pod", "active", "deployment", "verdict"])
def test_records_in_use_outlive_the_history(kept_by: str) -> None:
    model, revisions = parsed_model(), tuple(revision(number) for number in range(1, 10))
    used, target = revisions[0], revisions[-1]
    observed = ObservedState(
        now=NOW,
        revisions=revisions,
        # neither ready nor active, but the pod still runs
        pods=(replace(pod(used, ready=False), deleting=kept_by == "leaving pod"),) if "pod" in kept_by else (),
        deployment=deployment(used if kept_by == "deployment" else target),
        verdicts=(verdict(model, used, passed=True),) if kept_by == "verdict" else (),
    )
    # the plan for a target that is verified refers to no other revision
    active = used if kept_by == "active" else target
    chosen = RolloutPlan(deployed=target, replicas=1, active=active, target_may_serve=True, rejection=None, actions=())
    deleted = {found.name for found in rollout.prune(model, observed, chosen, target) if isinstance(found, Delete)}
    assert deleted == {f"minilm-{found.hash}" for found in revisions[1:6]}


def test_a_retry_removes_the_records_of_failures_only() -> None:
    model, (passed, failed) = parsed_model(), [revision(number) for number in (1, 2)]
    verdicts = (verdict(model, passed, passed=True), verdict(model, failed, passed=False))
    observed = ObservedState(now=NOW, revisions=(passed, failed), verdicts=verdicts)
    chosen = RolloutPlan(deployed=passed, replicas=1, active=passed, target_may_serve=True, rejection=None, actions=())
    retried = parsed_model({"metadata.annotations": {"encoders.dev/retry": "1"}})
    assert rollout.prune(model, observed, chosen, failed) == ()
    assert rollout.prune(retried, observed, chosen, failed) == (Delete("ControllerRevision", "minilm-r2-verdict"),)


def test_fields_that_others_set_on_the_deployment_are_reported() -> None:
    (target,) = [revision(1)]
    fields: dict[str, Any] = {"f:spec": {"f:paused": {}, "f:template": {"f:spec": {"f:hostNetwork": {}}}}}
    live = {"metadata": {"managedFields": [{"manager": "kubectl", "fieldsV1": fields}]}}
    there = Deployment(revision=target.hash, replicas=1, replica_failure="", live=live)
    observed = ObservedState(now=NOW, revisions=(target,))
    assert plan(observed, target).foreign_fields == ()
    # paused is the operator's own, and corrected
    assert plan(replace(observed, deployment=there), target).foreign_fields == ("spec.template.spec.hostNetwork",)


def test_one_pod_is_enough_to_verify_a_first_revision_and_an_update_has_all() -> None:
    model, (first, target) = parsed_model(), [revision(number) for number in (1, 2)]
    three = {"spec.serving.replicas": 3}
    alone = ObservedState(now=NOW, revisions=(target,))
    assert plan(alone, target, three).replicas == 1
    assert plan(alone, target, {"spec.serving.replicas": 0}).replicas == 0
    passed = ObservedState(now=NOW, revisions=(target,), verdicts=(verdict(model, target, passed=True),))
    assert plan(passed, target, three).replicas == 3
    serving = verdict(model, first, passed=True)
    beside = ObservedState(now=NOW, revisions=(first, target), verdicts=(serving,), pods=(pod(first),))
    found = plan(beside, target, three)
    # the previous revision is the active one until the target may serve
    assert (found.deployed, found.replicas, found.active, found.target_may_serve) == (target, 3, first, False)


def test_a_late_first_revision_may_still_become_ready_and_a_late_update_is_rolled_back() -> None:
    model, (first, target) = parsed_model(), [revision(number) for number in (1, 2)]
    alone = rollout.plan(model, ObservedState(now=NOW, revisions=(target,)), target, "too late")
    assert (alone.deployed, alone.replicas) == (target, 1)
    beside = ObservedState(now=NOW, revisions=(first, target), verdicts=(verdict(model, first, passed=True),))
    back = rollout.plan(model, beside, target, "too late")
    assert (back.deployed, back.replicas, back.active) == (first, 1, first)
    for found in (alone, back):
        assert found.rejection is not None
        assert (found.rejection.reason, found.rejection.message) == ("ProgressDeadlineExceeded", "too late")


@pytest.mark.parametrize(
    ("others", "pods", "gone"),
    [
        # of pods that are gone, the newest verdict says enough, and a pass outweighs failures
        ([(True, "pod:b", 1)], (), True),
        ([(True, "pod:b", -1)], (), False),
        ([(False, "pod:b", 1)], (), False),
        ([(True, "pod:b", 1)], ("a",), False),
        ([], (), False),
    ],
)
def test_the_verdict_on_a_single_pod_goes_when_another_says_as_much(
    others: list[tuple[bool, str, int]], pods: tuple[str, ...], gone: bool
) -> None:
    model, (target,) = parsed_model(), [revision(1)]
    ours = replace(verdict(model, target, passed=True), product="pod:a", name="ours")
    further = [
        replace(
            verdict(model, target, passed=passed), product=product, name=product, created=NOW + timedelta(days=later)
        )
        for passed, product, later in others
    ]
    running = tuple(replace(pod(target), uid=uid) for uid in pods)
    observed = ObservedState(now=NOW, revisions=(target,), verdicts=(ours, *further), pods=running)
    chosen = RolloutPlan(deployed=target, replicas=1, active=target, target_may_serve=True, rejection=None, actions=())
    assert (Delete("ControllerRevision", "ours") in rollout.prune(model, observed, chosen, target)) is gone
    # the verdict on a product stays
    stays = replace(observed, verdicts=(replace(ours, product="NVIDIA-L4"), *further))
    assert Delete("ControllerRevision", "ours") not in rollout.prune(model, stays, chosen, target)


def test_the_failure_of_a_pod_that_is_gone_goes_once_another_has_passed() -> None:
    model, (target, other_revision) = parsed_model(), [revision(number) for number in (1, 2)]
    failed = replace(verdict(model, target, passed=False), product="pod:a", name="failed")
    passed = replace(verdict(model, target, passed=True), name="passed", created=NOW - timedelta(days=1))
    former = replace(passed, thresholds="former")
    elsewhere = replace(passed, revision=other_revision.hash)
    chosen = RolloutPlan(deployed=target, replicas=1, active=target, target_may_serve=True, rejection=None, actions=())
    for other, gone in ((passed, True), (former, False), (elsewhere, False)):
        observed = ObservedState(now=NOW, revisions=(target, other_revision), verdicts=(failed, other))
        assert (Delete("ControllerRevision", "failed") in rollout.prune(model, observed, chosen, target)) is gone


@pytest.mark.parametrize("mode", ["Disabled", "Enforce"])
@pytest.mark.parametrize("kept_by", ["deployment", "pods", "nothing"])
def test_a_revision_that_was_never_verified_is_kept_only_without_checks_and_in_use(mode: str, kept_by: str) -> None:
    (first, target) = [revision(number) for number in (1, 2)]
    observed = ObservedState(
        now=NOW,
        revisions=(first, target),
        deployment=deployment(first) if kept_by == "deployment" else None,
        pods=(pod(first),) if kept_by == "pods" else (),
    )
    found = rollout.plan(parsed_model({"spec.parity": {"mode": mode}}), observed, target, "too late")
    back = mode == "Disabled" and kept_by != "nothing"
    assert found.deployed == (first if back else target)


def test_while_there_is_no_target_the_verified_revision_stays() -> None:
    model, (older, verified, other) = parsed_model(), [revision(number) for number in (1, 2, 3)]
    verdicts = tuple(verdict(model, found, passed=True) for found in (older, verified))
    observed = ObservedState(now=NOW, revisions=(older, verified, other), verdicts=verdicts)
    found = rollout.plan(model, observed, None)
    assert (found.deployed, found.active, found.target_may_serve, found.rejection) == (verified, verified, False, None)
    assert rollout.plan(model, ObservedState(now=NOW), None).actions == ()


def test_the_active_revision_is_the_one_whose_pods_receive_traffic() -> None:
    model, (older, newer, verified, target) = parsed_model(), [revision(number) for number in (1, 2, 3, 4)]
    observed = ObservedState(
        now=NOW, revisions=(older, newer, verified, target), verdicts=(verdict(model, verified, passed=True),)
    )
    # not what may serve, but what does
    assert plan(observed, target).active == verified
    assert plan(replace(observed, pods=(pod(older),)), target).active == older
    assert plan(replace(observed, pods=(pod(older), pod(newer))), target).active == newer
    assert plan(replace(observed, pods=(pod(older), pod(verified, ready=False))), target).active == older
