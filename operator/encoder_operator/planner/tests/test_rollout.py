"""Which revision the Deployment runs, and which records are kept, from states made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
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


@pytest.mark.parametrize("kept_by", ["pod", "deployment", "verdict"])
def test_records_in_use_outlive_the_history(kept_by: str) -> None:
    model, revisions = parsed_model(), tuple(revision(number) for number in range(1, 10))
    used, target = revisions[0], revisions[-1]
    observed = ObservedState(
        now=NOW,
        revisions=revisions,
        # neither ready nor active, but the pod still runs
        pods=(pod(used, ready=False),) if kept_by == "pod" else (),
        deployment=deployment(used if kept_by == "deployment" else target),
        verdicts=(verdict(model, used, passed=True),) if kept_by == "verdict" else (),
    )
    # the plan for a target that is verified refers to no other revision
    chosen = RolloutPlan(deployed=target, replicas=1, active=target, target_may_serve=True, rejection=None, actions=())
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
