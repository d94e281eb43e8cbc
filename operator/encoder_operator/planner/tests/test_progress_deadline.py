"""The progress deadline of a revision, from states made by hand: what is recorded, when it ends, and what does not count."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator.planner import progress_deadline
from encoder_operator.planner.actions import Apply
from encoder_operator.planner.progress_deadline import ProgressDeadline
from encoder_operator.state.observed import ObservedState, Pod, Revision, Verdict, format_time, parse_pod
from encoder_operator.tests.harness import parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 100


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def pod(**changes: Any) -> Pod:
    body = {"metadata": {"name": "p", "uid": "u", "labels": {"encoders.dev/revision": "r"}}}
    found = parse_pod({**body, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    return replace(found, **{"created": ago(1000), **changes})


def since(seconds: float, **more: Any) -> dict[str, Any]:
    return {"since": format_time(ago(seconds)), **more}


GIVEN_UP = since(900, limit=LIMIT, message="too late", retry="")


def evaluated(
    *pods: Pod, stalled: Any = None, retry: str = "", limit: int = LIMIT, **observed: Any
) -> ProgressDeadline:
    target = Revision(
        hash="r",
        inputs_hash="",
        number=1,
        pvc_uid="",
        template={"metadata": {"labels": {}}},
        pinned={},
        created=NOW,
        stalled=stalled or {},
    )
    other = replace(target, hash="other")
    model = parsed_model({"spec.rollout": {"progressDeadlineSeconds": limit}, **observed.pop("spec", {})})
    seen = ObservedState(now=NOW, pods=pods, revisions=(other, target), **observed)
    found = progress_deadline.evaluate(replace(model, retry=retry), seen, target)
    # what was recorded is what the rest of the plan sees, and is written if it has changed
    assert found.observed.revisions == (other, found.target)
    written = [action for action in found.actions if isinstance(action, Apply)]
    assert len(written) == (found.target != target)
    return found


@pytest.mark.parametrize(
    ("pods", "stalled", "recorded", "overdue", "again"),
    [
        # nothing is written for a pod that has just begun
        ([pod(created=ago(10))], {}, {}, False, 20.0),
        ([pod(created=ago(29.5))], {}, {}, False, 1.0),
        ([pod(created=ago(30))], {}, since(0), False, 100.0),
        ([pod()], since(40), since(40), False, 60.0),
        ([pod()], since(99), since(99), False, 1.0),
        ([pod()], since(100), None, True, None),
        ([pod(phase="Pending")], since(100), None, True, None),
        # a record is kept from the first second of another pod
        ([pod(created=ago(1))], since(40), since(40), False, 60.0),
        # without a pod on a node no time counts
        ([], since(400), {}, False, None),
        ([pod(node="")], since(400), {}, False, None),
        ([pod(deleting=True)], since(400), {}, False, None),
        ([pod(phase="Failed")], since(400), {}, False, None),
        ([pod(revision="other")], since(400), {}, False, None),
        # a pod that runs, and one that restarted and runs again
        ([pod(containers_ready=True)], since(40), {}, False, None),
        ([pod(containers_ready=True, restarts=2)], {}, {}, False, None),
        ([pod(containers_ready=True, restarts=2)], since(400), since(400, restarts=2), False, None),
        ([pod(containers_ready=True, restarts=2), pod(containers_ready=True)], since(400), {}, False, None),
        ([pod(restarts=2)], since(400, restarts=2), since(400, restarts=2), False, None),
        ([pod(restarts=3)], since(40, restarts=2), since(40, restarts=2), False, 60.0),
        ([pod(restarts=3)], since(400, restarts=2), None, True, None),
        # of a pod that crashed less often, the record is another pod's
        ([pod(restarts=1)], since(400, restarts=2), since(0), False, 100.0),
        ([pod()], GIVEN_UP, GIVEN_UP, True, None),
    ],
)
def test_time_counts_while_a_pod_on_a_node_does_not_start(
    pods: list[Pod], stalled: Any, recorded: Any, overdue: bool, again: float | None
) -> None:
    found = evaluated(*pods, stalled=stalled)
    assert (bool(found.overdue), found.requeue_after) == (overdue, again)
    if recorded is not None:
        assert found.target.stalled == recorded


def test_a_revision_is_given_up_with_the_reason_the_deadline_and_the_retry_of_that_time() -> None:
    found = evaluated(pod(unschedulable="x" * 900), stalled=since(100), retry="1")
    assert found.overdue == f"Pod p has not started within 100 s: {'x' * 900}"
    assert found.target.stalled == since(100, limit=100, message=found.overdue[:500], retry="1")
    crashed = evaluated(pod(restarts=3), stalled=since(100, restarts=2))
    assert crashed.overdue == "Pod p has crashed repeatedly and was not verified within 100 s"
    assert evaluated(pod(restarts=3), stalled=since(100)).overdue == "Pod p has not started within 100 s"


@pytest.mark.parametrize(
    ("changes", "overdue"),
    [
        ({}, "too late"),
        ({"spec": {"spec.suspend": True}}, "too late"),
        ({"limit": 101}, ""),
        ({"limit": 99}, "too late"),
        ({"retry": "1"}, ""),
        ({"stalled": {**GIVEN_UP, "retry": "1"}, "retry": "1"}, "too late"),
        # the annotation is removed
        ({"stalled": {**GIVEN_UP, "retry": "1"}}, "too late"),
    ],
)
def test_it_stays_given_up_until_a_new_retry_or_a_longer_deadline(changes: dict[str, Any], overdue: str) -> None:
    assert evaluated(**{"stalled": GIVEN_UP, **changes}).overdue == overdue


def test_after_a_retry_it_has_the_whole_deadline() -> None:
    found = evaluated(pod(), stalled=GIVEN_UP, retry="1")
    assert (found.target.stalled, found.requeue_after) == (since(0), 100.0)


def test_a_verified_revision_has_no_deadline_and_a_suspended_one_keeps_its_record() -> None:
    verdict = Verdict(
        name="v",
        revision="r",
        product="cpu",
        image="i",
        thresholds=parsed_model().thresholds,
        retry="",
        passed=True,
        data={},
        created=NOW,
    )
    assert evaluated(pod(), stalled=GIVEN_UP, verdicts=(verdict,)).target.stalled == {}
    assert evaluated(pod(), stalled=since(400), spec={"spec.suspend": True}).target.stalled == since(400)
