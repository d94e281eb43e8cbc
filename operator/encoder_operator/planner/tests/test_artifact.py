from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import artifact
from encoder_operator.planner.actions import Delete
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.state import desired, observed
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Job, ObservedState, PersistentVolumeClaim, Pod, Termination
from encoder_operator.status.reasons import Reason
from encoder_operator.tests import harness
from encoder_operator.tests.harness import PREPARED, SETTINGS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def wanted() -> EncoderModel:
    live = harness.encoder_model()
    live["metadata"]["uid"] = "u"
    return desired.parse_model(live, SETTINGS)


MODEL = wanted()
KEY = revision.artifact_key(MODEL)
CLAIM = PersistentVolumeClaim(
    name="minilm-artifacts", uid="c", bound=True, shared=True, message="", live=harness.existing_pvc()
)


def pod(**changes: Any) -> Pod:
    found = observed.parse_pod({"metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}})
    return replace(found, **changes)


def ended(code: int, said: str | dict[str, Any] = "", reason: str = "Error") -> Termination:
    message = said if isinstance(said, str) else json.dumps(said)
    return Termination(exit_code=code, reason=reason, message=message, finished_at=NOW)


def job(*pods: Pod, **changes: Any) -> Job:
    return replace(
        Job(
            name=naming.prep_job("minilm", KEY),
            uid="j",
            revision="",
            annotations={naming.INPUTS: prep_job.inputs_hash(MODEL, KEY), naming.RETRY: ""},
            created=NOW,
            deleting=False,
            complete=False,
            failed="",
            message="",
            finished_at=None,
            pods=pods,
        ),
        **changes,
    )


def decided(found: Job, now: datetime = NOW) -> artifact.ArtifactPlan:
    return artifact.plan(MODEL, ObservedState(now=now, pvc=CLAIM, prep_jobs=(found,)), None, SETTINGS)


@pytest.mark.parametrize(
    "code",
    [
        *(
            "AuthFailed",
            "RepositoryNotFound",
            "RevisionNotFound",
            "FileNotFound",
            "InsufficientSpace",
            "ChecksumMismatch",
        ),
        *("Unsupported", "UnsupportedFilesystem", "PickleRefused", "RemoteCodeRefused"),
        *("Stalled", "RateLimited", "DownloadFailed"),
    ],
)
def test_each_code_of_a_failed_job_is_a_reason_and_nothing_is_tried_again(code: str) -> None:
    failed = job(pod(terminated=ended(44, {"code": code, "message": "why"})), failed="PodFailurePolicy")
    found = decided(failed)
    assert (found.reason.value, found.message, found.failed) == (code, "why", True)
    assert found.actions == ()
    assert found.requeue_after is None


@pytest.mark.parametrize(
    ("broken", "reason", "part"),
    [
        (job(failed="BackoffLimitExceeded", message="limit"), Reason.PREPARATION_FAILED, "limit"),
        (job(pod(terminated=ended(1, "Traceback\nKeyError: 'x'")), failed="x"), Reason.PREPARATION_FAILED, "KeyError"),
        (
            job(pod(terminated=ended(3, {"code": "Novel", "message": "m"})), failed="x"),
            Reason.PREPARATION_FAILED,
            "Novel: m",
        ),
        (job(pod(terminated=ended(137, "", "OOMKilled")), failed="x"), Reason.OUT_OF_MEMORY, "memory"),
        (job(failed="DeadlineExceeded"), Reason.DEADLINE_EXCEEDED, "activeDeadlineSeconds"),
        (job(pod(reason="Evicted"), failed="x"), Reason.EVICTED, "evicted"),
        (
            job(pod(waiting_reason="ImagePullBackOff", waiting_message="no such image")),
            Reason.IMAGE_PULL_FAILED,
            "no such",
        ),
        (job(pod(mount_problem='secret "hub" not found')), Reason.TOKEN_SECRET_MISSING, "hub"),
        (job(pod(mount_problem="mount.nfs: timed out")), Reason.VOLUME_NOT_MOUNTED, "nfs"),
        (job(pod(unschedulable='persistentvolumeclaim "x" not found')), Reason.CLAIM_MISSING, "x"),
        (job(pod(unschedulable="pod has unbound immediate PersistentVolumeClaims")), Reason.CLAIM_PENDING, "unbound"),
        (job(pod(unschedulable="0/3 nodes are available: Insufficient cpu")), Reason.UNSCHEDULABLE, "cpu"),
        (job(pod(node="n", node_problem="is gone")), Reason.NODE_LOST, "on node n, which is gone"),
        (job(pod(phase="Running", deleting=True, node_problem="does not answer")), Reason.NODE_LOST, "does not answer"),
        (job(pod(phase="Running", deleting=True)), Reason.PREPARING, "is terminating"),
        (job(pod(phase="Failed", disrupted=True)), Reason.PREPARING, "is creating a replacement pod"),
        (job(pod(phase="Running")), Reason.PREPARING, "is running"),
        (job(), Reason.PREPARING, "starting"),
    ],
)
def test_what_a_job_is_doing_is_a_reason_and_a_sentence(broken: Job, reason: Reason, part: str) -> None:
    found = decided(broken)
    assert found.reason is reason
    assert part in found.message


def test_a_failed_attempt_is_reported_while_the_next_one_runs() -> None:
    first = pod(name="a", terminated=ended(75, {"code": "RateLimited", "message": "slow down"}))
    found = decided(job(first, pod(name="b", created=NOW + timedelta(seconds=9), phase="Running")))
    assert found.reason is Reason.RATE_LIMITED
    assert found.message == "Attempt 1 of 5 failed and will be retried: slow down"
    assert not found.failed


def test_progress_is_reported_for_a_second_attempt() -> None:
    first = pod(name="a", terminated=ended(75, {"code": "Stalled", "message": "no byte"}), phase="Failed")
    second = pod(name="b", created=NOW + timedelta(seconds=9), phase="Running", progress={"bytes": 7})
    found = decided(job(first, second))
    assert (found.reason, found.progress, found.key, found.requeue_after) == (Reason.STALLED, {"bytes": 7}, KEY, 10.0)


LOW = "The node was low on resource: ephemeral-storage."
TOO_MUCH = "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "


def test_a_pod_that_made_room_is_no_try_and_one_that_took_too_much_is() -> None:
    made_room = pod(name="a", node="n", phase="Failed", reason="Evicted", message=LOW, disrupted=True)
    second = pod(name="b", created=NOW + timedelta(seconds=9), phase="Running")
    waiting, going_on = decided(job(made_room)), decided(job(made_room, second))
    assert waiting.reason is Reason.EVICTED
    assert waiting.message == f"The prep Job is creating a replacement pod. Pod a was evicted from node n: {LOW}"
    assert going_on.reason is Reason.PREPARING
    assert going_on.message == f"Pod b is running. Pod a was evicted from node n: {LOW}"
    # the kubelet says of both how the container ended; only a pod that broke its own limit has no `DisruptionTarget`
    killed = replace(made_room, disrupted=False, message=TOO_MUCH, terminated=ended(137))
    tried, given_up = decided(job(killed, second)), decided(job(killed, failed="BackoffLimitExceeded"))
    assert tried.reason is given_up.reason is Reason.EVICTED
    assert tried.message == f"Attempt 1 of 5 failed and will be retried: Pod a was evicted from node n: {TOO_MUCH}"
    assert given_up.message == f"Pod a was evicted from node n: {TOO_MUCH}"
    ended_so = replace(made_room, terminated=ended(137))
    assert decided(job(ended_so, second)).message == going_on.message


def test_a_report_counts_before_the_job_is_complete() -> None:
    found = decided(job(pod(terminated=ended(0, PREPARED, "Completed"))))
    assert found.artifact is not None
    assert found.artifact.digest == PREPARED["digest"]


@pytest.mark.parametrize(
    "said", ["", "not JSON", "[]", {"code": "Prepared"}, {"code": "Prepared", "digest": "sha256:1"}]
)
def test_a_complete_job_without_a_report_is_made_again(said: str | dict[str, Any]) -> None:
    finished = job(pod(terminated=ended(0, said)), complete=True)
    assert decided(finished).actions == (Delete("Job", finished.name),)


def test_an_outdated_job_is_recreated() -> None:
    other = job(annotations={naming.INPUTS: "other"})
    assert decided(other).actions == (Delete("Job", other.name),)


def test_a_retry_concerns_failed_jobs_only() -> None:
    asking = replace(MODEL, retry="1")

    def actions(found: Job) -> object:
        return artifact.plan(asking, ObservedState(now=NOW, pvc=CLAIM, prep_jobs=(found,)), None, SETTINGS).actions

    assert actions(job(pod(phase="Running"))) == ()
    assert actions(job(failed="x")) == (Delete("Job", job().name),)


def test_a_removed_retry_annotation_has_no_effect() -> None:
    earlier = {naming.INPUTS: prep_job.inputs_hash(MODEL, KEY), naming.RETRY: "earlier"}
    assert decided(job(failed="x", annotations=earlier)).actions == ()


def test_another_artifacts_job_is_ended() -> None:
    old = job(name="minilm-0123456789abcdef-prep")
    assert Delete("Job", old.name) in decided(old).actions


def test_a_pending_pod_is_polled_for_its_mounts() -> None:
    assert decided(job(pod())).requeue_after == 10.0


def test_a_missing_user_pvc_is_reported_and_starts_nothing() -> None:
    live = harness.encoder_model()
    live["metadata"]["uid"] = "u"
    live["spec"]["storage"] = {"claimName": "mine"}
    found = artifact.plan(desired.parse_model(live, SETTINGS), ObservedState(now=NOW), None, SETTINGS)
    assert found.reason is Reason.CLAIM_MISSING
    assert found.actions == ()
    assert found.requeue_after
