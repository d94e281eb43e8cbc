from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import artifact
from encoder_operator.planner.actions import Delete
from encoder_operator.planner.tests.prep_states import CLAIM, KEY, MODEL, NOW, ended, job, kinds, pod, with_artifact
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.state import desired
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Job, ObservedState, Revision
from encoder_operator.status.reasons import Reason
from encoder_operator.tests import harness
from encoder_operator.tests.harness import PREPARED, SETTINGS


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
        # the pod did not end, so that its problem is the only report
        (job(pod(mount_problem="timed out"), failed="x", message="limit"), Reason.VOLUME_NOT_MOUNTED, "timed out"),
        (job(pod(phase="Running"), failed="x"), Reason.PREPARATION_FAILED, "The prep Job failed without a report"),
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
        (job(suspended=True), Reason.QUEUED, "waits for another controller to resume it"),
        (job(pod(phase="Running", deleting=True), suspended=True), Reason.QUEUED, "is suspended"),
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
    found = decided(job(pod(terminated=ended(0, {**PREPARED, "bytes": 5_040_000}, "Completed"))))
    assert found.artifact is not None
    assert found.artifact.digest == PREPARED["digest"]
    assert found.message == f"The artifact has 5.0 MB and the digest {PREPARED['digest']}"


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
    mine = replace(CLAIM, name="mine")
    started = artifact.plan(desired.parse_model(live, SETTINGS), ObservedState(now=NOW, pvc=mine), None, SETTINGS)
    assert (started.reason, kinds(started)) == (Reason.PREPARING, ["Job"])


def test_a_preparation_begins_with_the_pvc_if_there_is_none() -> None:
    def started(**changes: Any) -> artifact.ArtifactPlan:
        return artifact.plan(MODEL, ObservedState(now=NOW, **changes), None, SETTINGS)

    assert (started().reason, kinds(started())) == (Reason.PREPARING, ["PersistentVolumeClaim", "Job"])
    assert kinds(started(pvc=CLAIM)) == ["Job"]
    queued = started(prep_wait_reason="wait for others")
    assert (queued.reason, queued.message, queued.actions) == (Reason.QUEUED, "wait for others", ())
    assert (queued.key, queued.requeue_after) == (KEY, 120.0)
    suspended = replace(MODEL, spec=MODEL.spec.model_copy(update={"suspend": True}))
    found = artifact.plan(suspended, ObservedState(now=NOW), None, SETTINGS)
    assert (found.reason, found.actions) == (Reason.SUSPENDED, ())


def test_nothing_is_prepared_without_the_inputs_of_the_user() -> None:
    found = artifact.plan(replace(MODEL, inputs_hash=None), ObservedState(now=NOW, pvc=CLAIM), None, SETTINGS)
    assert (found.reason, found.actions, found.requeue_after) == (Reason.INPUTS_MISSING, (), 10.0)
    asking = harness.parsed_model({"spec.parity": {"inputs": {"configMapRef": {"name": "cases", "key": "json"}}}})
    for exists, expected in (
        (False, "spec.parity.inputs: ConfigMap cases, which needs the key json, does not exist in namespace demo"),
        (True, "spec.parity.inputs: ConfigMap cases in namespace demo does not have the key json"),
    ):
        observed = ObservedState(now=NOW, pvc=CLAIM, inputs_config_map=exists)
        assert artifact.plan(replace(asking, inputs_hash=None), observed, None, SETTINGS).message == expected


def digest(
    *revisions: Revision, model: EncoderModel = MODEL, target: Revision | None = None, pvc: Any = CLAIM
) -> str | None:
    """Return the digest of the artifact that is used instead of a new one."""
    seen = ObservedState(now=NOW, pvc=pvc, revisions=revisions)
    found = artifact.plan(model, seen, target, SETTINGS)
    assert (found.reason is Reason.PREPARED) == (found.artifact is not None)
    assert found.actions == () or found.artifact is None
    return found.artifact.digest if found.artifact else None


def test_an_artifact_is_prepared_once_for_each_volume_and_key() -> None:
    first, second = with_artifact(1), with_artifact(2)
    assert digest() is None
    assert digest(first) == "d1"
    assert digest(first, second) == digest(second, first) == "d2"
    assert digest(first, second, target=first) == "d1"
    other = with_artifact(3, harness.parsed_model({"spec.prepare": {"allowPickle": True}}))
    assert digest(other) is None
    assert digest(other, first) == "d1"
    # the artifact of the target revision is kept, whatever its key is now
    assert digest(other, first, target=other) == "d3"
    for elsewhere in ({"pvc_uid": "another"}, {"pinned": {**first.pinned, "claim": "another"}}):
        assert digest(replace(first, **elsewhere)) is None
    gone = replace(first, pvc_uid="another")
    assert digest(gone, target=gone) is None
    assert digest(first, target=first, pvc=None) is None


def branch(name: str = "main", retry: str = "", uid: str = "u") -> EncoderModel:
    found = harness.parsed_model(
        {"spec.source": {"huggingFace": {"repo": "a/b", "revision": name, "allowMutableRevision": True}}}
    )
    return replace(found, retry=retry, uid=uid)


def test_the_commit_of_a_branch_is_kept_until_a_retry_is_requested() -> None:
    main = with_artifact(1, branch())
    assert digest(main, model=branch()) == "d1"
    assert digest(main, model=branch("dev")) is None
    assert digest(main, model=branch(retry="1")) is None
    again = with_artifact(2, branch(retry="1"), retry="1")
    assert digest(main, again, model=branch(retry="1")) == "d2"
    # the annotation is removed
    assert digest(main, again, model=branch()) == "d2"
    # an edit of another field changes the key of neither; one of the key alone is looked up by its source
    moved = replace(main, pinned={**main.pinned, "artifact": {**main.pinned["artifact"], "key": "older"}})
    assert digest(moved, model=branch()) == "d1"
    fixed = replace(with_artifact(3), pinned=moved.pinned)
    assert digest(fixed) is None


def test_each_model_looks_up_a_branch_for_itself_and_shares_a_commit() -> None:
    keys = {revision.artifact_key(branch(uid=uid, retry=retry)) for uid in ("u", "v") for retry in ("", "1")}
    assert len(keys) == 4
    assert len({revision.artifact_key(branch("1" * 40, uid=uid)) for uid in ("u", "v")}) == 1


def test_jobs_of_a_finished_preparation_stay_and_others_are_ended() -> None:
    main = with_artifact(1)
    for found, ended_too in (
        (job(), False),
        (job(name="other"), True),
        (job(name="other", complete=True), False),
        (job(name="other", failed="x"), False),
        (job(name="other", deleting=True), False),
    ):
        seen = ObservedState(now=NOW, pvc=CLAIM, revisions=(main,), prep_jobs=(found,))
        actions = artifact.plan(MODEL, seen, None, SETTINGS).actions
        assert actions == ((Delete("Job", "other"),) if ended_too else ())
    # without an artifact, the Job of another key is ended whether it has finished or not
    assert Delete("Job", "other") in decided(job(name="other", complete=True)).actions


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"complete": True}, "its report was lost"),
        ({"annotations": {naming.INPUTS: "other"}}, "the spec changed"),
        ({"failed": "x", "annotations": {naming.INPUTS: prep_job.inputs_hash(MODEL, KEY)}}, "a retry was requested"),
        ({"pvc": "another", "complete": True}, "the artifact was on PersistentVolumeClaim another"),
        (
            {"created": NOW - timedelta(seconds=1), "pods": (pod(terminated=ended(0, PREPARED)),)},
            "PersistentVolumeClaim minilm-artifacts was recreated",
        ),
    ],
)
def test_a_job_is_made_again_for_a_reason(changes: dict[str, Any], cause: str) -> None:
    live = {**CLAIM.live, "metadata": {**CLAIM.live["metadata"], "creationTimestamp": NOW.isoformat()}}
    found = artifact.plan(
        replace(MODEL, retry="1"),
        ObservedState(now=NOW, pvc=replace(CLAIM, live=live), prep_jobs=(job(**changes),)),
        None,
        SETTINGS,
    )
    assert found.message == f"The prep Job is created again because {cause}"
    assert found.actions == (Delete("Job", job().name),)
    assert (found.reason, found.requeue_after) == (Reason.PREPARING, 0.5)


def test_a_job_whose_pvc_is_gone_is_made_again_unless_the_user_may_create_it() -> None:
    mine = harness.parsed_model({"spec.storage": {"claimName": "mine"}})
    wanted_job = {
        "name": naming.prep_job("minilm", KEY),
        "annotations": {naming.INPUTS: prep_job.inputs_hash(mine, KEY)},
    }

    def message(model: EncoderModel, **changes: Any) -> str:
        seen = ObservedState(now=NOW, prep_jobs=(job(**changes),))
        return artifact.plan(model, seen, None, SETTINGS).message

    assert message(MODEL).endswith("because PersistentVolumeClaim minilm-artifacts no longer exists")
    assert message(mine, **wanted_job) == "The prep Job is starting"
    gone = "because PersistentVolumeClaim mine no longer exists"
    assert message(mine, **wanted_job, complete=True).endswith(gone)


def test_a_job_that_is_being_deleted_is_waited_for() -> None:
    found = decided(job(pod(terminated=ended(0, PREPARED)), deleting=True, complete=True))
    assert (found.reason, found.actions, found.artifact, found.requeue_after) == (Reason.PREPARING, (), None, 1.0)


@pytest.mark.parametrize(
    ("changes", "believed"),
    [
        ({"terminated": ended(0, PREPARED)}, True),
        ({"terminated": ended(1, PREPARED)}, False),
        ({"terminated": ended(137, PREPARED, "OOMKilled")}, False),
        ({"terminated": ended(0, {**PREPARED, "code": "Stalled"})}, False),
        ({"terminated": ended(0, {**PREPARED, "reference": ""})}, False),
        ({}, False),
    ],
)
def test_a_report_is_believed_of_a_pod_that_succeeded(changes: dict[str, Any], believed: bool) -> None:
    assert (decided(job(pod(**changes))).artifact is not None) == believed
    # a pod that failed hides no report of a later one
    if not believed:
        later = pod(name="later", terminated=ended(0, {**PREPARED, "bytes": None, "revision": None}))
        found = decided(job(pod(**changes), later)).artifact
        assert found
        assert (found.digest, found.bytes, found.revision) == (PREPARED["digest"], 0, "")


def test_the_pods_of_a_job_that_the_api_server_rejects_are_reported() -> None:
    found = decided(job(rejection="exceeded quota"))
    assert (found.reason, found.requeue_after) == (Reason.PODS_REFUSED, 30.0)
    assert found.message.endswith("cannot create its pod: exceeded quota")
    assert decided(job()).requeue_after == 3.0
    assert decided(job(pod(phase="Running"), rejection="exceeded quota")).reason is Reason.PREPARING


def test_a_deadline_names_what_held_the_last_pod_up() -> None:
    late = {"failed": "DeadlineExceeded"}
    begin = "The prep Job exceeded spec.prepare.activeDeadlineSeconds"
    assert decided(job(**late)).message == decided(job(pod(phase="Running"), **late)).message == begin
    stuck = decided(job(pod(mount_problem="timed out"), **late))
    assert (stuck.message, stuck.failed) == (f"{begin}: timed out", True)


@pytest.mark.parametrize(("waited", "again"), [(0, 10.0), (4, 6.0), (9.5, 1.0), (60, 1.0)])
def test_a_pod_that_starts_is_read_again_when_its_mounts_can_be_late(waited: float, again: float) -> None:
    assert decided(job(pod()), NOW + timedelta(seconds=waited)).requeue_after == again


def test_a_problem_of_the_pod_is_polled() -> None:
    assert decided(job(pod(mount_problem="timed out"))).requeue_after == 30.0


def test_an_exit_without_words_is_reported_by_its_code() -> None:
    assert decided(job(pod(terminated=ended(3)), failed="x")).message == "The prep Job exited with code 3"
    long = decided(job(pod(terminated=ended(3, "a" * 5 + "b" * 300)), failed="x")).message
    assert long == "b" * 300
