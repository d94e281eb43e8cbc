"""State is on the cluster: what can be wiped, restarted or upgraded without a pod noticing, and what each pod must prove by itself."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import Resources
from encoder_operator.client.errors import RequestRejected, WebhookFailed
from encoder_operator.controller.tests.test_progress_deadline import give_up
from encoder_operator.controller.tests.test_rollouts import spec
from encoder_operator.resources import serving_pod_template
from encoder_operator.revisions import revision
from encoder_operator.state.desired import parse_model
from encoder_operator.state.observed import format_time
from encoder_operator.status import status
from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import (
    PLUGIN,
    PREPARED,
    SETTINGS,
    Harness,
    annotate,
    encoder_model,
    failing_report,
    passing_report,
    with_fields,
)

LIVES: list[dict[str, Any]] = [
    {"spec.serving.replicas": replicas, "spec.serving.maxModelLen": length, **more}
    for replicas in (1, 2)
    for length in (32, 64)
    for more in (
        {},
        {"spec.parity.mode": "Disabled"},
        {"spec.serving.dtype": "bfloat16"},
        {"spec.serving.env": [{"name": "A", "value": "b"}]},
        {"spec.rollout.strategy": "Recreate"},
    )
]


def wipe(live: Json) -> None:
    """Do what `kubectl replace` does with a manifest out of a repository."""
    live.pop("status", None)
    live["metadata"].pop("annotations", None)


async def wiped(harness: Harness) -> None:
    """Wipe what is not in the spec, restart the operator, and let nothing come of it."""
    before, pods = copy.deepcopy(harness.status), harness.serving()
    harness.edit(wipe)
    harness.reconciler = harness.operator()
    harness.fake.writes.clear()
    await harness.settle()
    assert harness.serving() == pods
    assert [w for w in harness.fake.writes if "events" not in w] == ["PATCH encodermodels/status minilm"]
    for shown in (before, harness.status):
        for entry in shown["conditions"]:
            del entry["lastTransitionTime"]
    assert harness.status == before


async def test_wiping_after_a_rollout_changes_nothing() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    harness.change(maxModelLen=64)
    await harness.settle()
    await wiped(harness)


async def test_wiping_after_an_update_to_new_defaults_does_not_bring_the_old_ones_back() -> None:
    harness = Harness()
    await harness.settle()
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}})
    harness.operator_settings = SETTINGS.model_copy(update={"images": newer})
    harness.reconciler = harness.operator()
    harness.edit(annotate(update="1"))
    await harness.settle()
    assert harness.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"
    await wiped(harness)


async def test_wiping_after_a_failed_retry_does_not_try_again() -> None:
    harness = Harness()
    await harness.settle()
    harness.parity = failing_report
    harness.change(maxModelLen=64)
    await harness.settle()
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert len(harness.fake.of("jobs", component="parity")) == 3
    harness.parity = passing_report
    await wiped(harness)
    assert harness.condition("UpToDate") == ("False", "ParityFailed")


async def test_wiping_while_a_preparation_has_failed_starts_none() -> None:
    harness = Harness()
    harness.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    await harness.settle()
    harness.edit(annotate(retry="1"))
    await harness.settle()
    await wiped(harness)


async def test_an_update_that_an_older_operator_recorded_is_known_again() -> None:
    harness = Harness()
    harness.edit(annotate(update="1"))
    await harness.settle()
    record = harness.fake.of("controllerrevisions", component="revision")[0]
    # as 0.1.0 wrote it: the annotation is part of the label's hash, and nowhere else
    record["metadata"]["labels"]["encoders.dev/inputs"] = revision.inputs_hash(parse_model(harness.live, SETTINGS), "1")
    for told in ("annotations", "labels"):
        del record["metadata"][told]["encoders.dev/update"]
    pods = harness.serving()
    await harness.settle()
    assert harness.serving() == pods
    assert (
        record["metadata"]["name"]
        == harness.fake.of("controllerrevisions", component="revision")[0]["metadata"]["name"]
    )
    await wiped(harness)


async def test_another_version_of_the_operator_restarts_no_pod_of_twenty_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worlds = [Harness(with_fields(changes)) for changes in LIVES]
    assert len(worlds) == 20
    for harness in worlds:
        await harness.settle()
    pods = [harness.serving() for harness in worlds]
    templates = [copy.deepcopy(harness.fake.of("deployments")[0]["spec"]["template"]) for harness in worlds]
    render = serving_pod_template.build

    def newer(*args: Any, **options: Any) -> Json:
        found = render(*args, **options)
        found["spec"]["terminationGracePeriodSeconds"] = 17
        found["spec"]["containers"][0]["env"].append({"name": "NEW", "value": "default"})
        return found

    monkeypatch.setattr(serving_pod_template, "build", newer)
    images = SETTINGS.images.model_copy(
        update={"operator": "operator:2", "engine": {"cpu": {PLUGIN: "engine:2"}}, "prep": {PLUGIN: "prep:2"}}
    )
    resources = Resources(requests={"cpu": "3", "memory": "7Gi"})
    settings = SETTINGS.model_copy(
        update={"images": images, "serving_resources": resources, "prep_resources": resources, "prep_stall_seconds": 7}
    )
    for harness in worlds:
        harness.operator_settings = settings
        harness.reconciler = harness.operator()
        harness.fake.writes.clear()
        await harness.settle()
        assert harness.fake.writes == ["PATCH encodermodels/status minilm"]
        assert harness.condition("UpdateAvailable") == ("True", "NewDefaults")
        assert harness.condition("Ready") == ("True", "Ready")
    assert [harness.serving() for harness in worlds] == pods
    assert [harness.fake.of("deployments")[0]["spec"]["template"] for harness in worlds] == templates
    # the old version comes back: a rollback of the operator is as quiet
    for harness in worlds:
        harness.operator_settings = SETTINGS
        harness.reconciler = harness.operator()
        await harness.settle()
    assert [harness.serving() for harness in worlds] == pods


async def test_a_container_with_another_image_is_verified_again() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    harness.parity = failing_report
    pod = copy.deepcopy(harness.fake.of("pods", component="serving")[0])
    pod["status"]["containerStatuses"][0] |= {"imageID": "sha256:2", "containerID": "containerd://another"}
    harness.fake.put("pods", pod)
    await harness.settle()
    assert len(harness.endpoints()) == 1
    assert harness.condition("Degraded") == ("True", "ParityFailed")
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Ready") == ("True", "Ready")


@pytest.mark.fault(
    "the operator's clock is an hour ahead, or behind",
    "nothing",
    "the API server's clock is used: nothing is given up early or retried late",
)
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_wrong_gives_nothing_up_early_and_tries_nothing_late(hours: int) -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.ahead = timedelta(hours=hours)
    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    harness.change(maxModelLen=64)
    await harness.settle()
    assert harness.condition("UpToDate") == ("False", "Inconclusive")
    assert 0 < (await harness.reconcile() or 0) <= 10
    assert len(harness.fake.of("jobs", component="parity")) == 2
    harness.change(maxModelLen=65)

    def hangs(pod: Json) -> None:
        pod["metadata"]["creationTimestamp"] = format_time(harness.fake.now() - timedelta(seconds=60))
        pod["status"]["conditions"][0]["status"] = "False"

    harness.starts = hangs
    await harness.settle()
    assert await harness.reconcile() == pytest.approx(1800, abs=60)
    changed = next(entry for entry in harness.status["conditions"] if entry["type"] == "Progressing")
    at = datetime.fromisoformat(changed["lastTransitionTime"])
    assert abs(at - harness.fake.now()) < timedelta(minutes=30)


async def rolled_out(harness: Harness) -> None:
    harness.change(maxModelLen=64)
    await harness.settle()


async def updated(harness: Harness) -> None:
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}})
    harness.operator_settings = SETTINGS.model_copy(update={"images": newer})
    harness.reconciler = harness.operator()
    harness.edit(annotate(update="1"))
    await harness.settle()
    # what the update has brought is not today's any more
    harness.operator_settings = SETTINGS
    harness.reconciler = harness.operator()
    await harness.settle()


async def failed_twice(harness: Harness) -> None:
    harness.parity = failing_report
    harness.change(maxModelLen=64)
    await harness.settle()
    harness.edit(annotate(retry="2026-11-21T10:00:00Z"))
    await harness.settle()
    harness.parity = passing_report


async def take_a_branch(harness: Harness) -> None:
    """Prepare from a branch that is at another commit each time it is looked up."""
    commits = iter("123456")

    def prepare(job: Json) -> tuple[int, Json]:
        letter = next(commits)
        return 0, PREPARED | {"digest": "sha256:" + letter * 64, "revision": letter * 40}

    harness.prep = prepare
    harness.parity = lambda job: passing_report(job) | {"artifact": artifact(harness)}
    harness.edit(branch)
    await harness.settle()


async def followed_a_branch(harness: Harness) -> None:
    await take_a_branch(harness)
    harness.edit(annotate(retry="1"))
    await harness.settle()


@pytest.mark.fault(
    "all annotations are removed, including those of the operator's ControllerRevisions, and the operator restarts",
    "the same conditions as before",
    "no pod changes, and nothing is retried, prepared or resolved again",
)
@pytest.mark.parametrize("kept", [False, True], ids=["the model's too", "but the model's"])
@pytest.mark.parametrize("lived", [rolled_out, updated, failed_twice, give_up, followed_a_branch])
async def test_nothing_rolls_without_any_annotation(
    lived: Callable[[Harness], Awaitable[None]],
    kept: bool,
) -> None:
    harness = Harness()
    await harness.settle()
    await lived(harness)
    before, pods = said(harness), harness.serving()
    for kind in ("controllerrevisions", "deployments", "services", "pods", "persistentvolumeclaims"):
        for live in harness.fake.of(kind):
            live["metadata"].pop("annotations", None)
    for job in harness.fake.of("jobs"):
        harness.fake.remove("jobs", "demo", job["metadata"]["name"])
    harness.edit((lambda live: live.pop("status")) if kept else wipe)
    harness.reconciler = harness.operator()
    harness.fake.writes.clear()
    await harness.settle()
    assert harness.serving() == pods
    assert [w for w in harness.fake.writes if "events" not in w] == ["PATCH encodermodels/status minilm"]
    assert said(harness) == before


async def test_a_record_of_an_older_operator_without_these_labels_is_no_reason_to_write() -> None:
    harness = Harness()
    await followed_a_branch(harness)
    for record in harness.fake.of("controllerrevisions", component="revision"):
        for label in ("claim-uid", "origin", "retry"):
            record["metadata"]["labels"].pop(f"encoders.dev/{label}", None)
    harness.reconciler = harness.operator()
    harness.fake.writes.clear()
    await harness.settle()
    assert harness.fake.writes == []


@pytest.mark.fault(
    "the PersistentVolumeClaim of the artifact is recreated, or the model moves to another one",
    "`Preparing`",
    "the artifact is prepared again on the current volume; serving pods keep serving",
)
@pytest.mark.parametrize("moves", [False, True], ids=["made again", "another one"])
async def test_the_report_of_a_job_about_a_deleted_volume_is_ignored(moves: bool) -> None:
    harness = Harness()
    await harness.settle()
    first, pods, asked = harness.status["activeRevision"], harness.serving(), []
    harness.prep = lambda job: asked.append(job) or (0, PREPARED)  # type: ignore[func-returns-value]
    if moves:
        other = {"metadata": {"name": "other", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        harness.fake.put("persistentvolumeclaims", other)
        harness.edit(spec(storage={"claimName": "other"}))
    else:
        harness.fake.remove("persistentvolumeclaims", "demo", "minilm-artifacts")
    harness.reconciler = harness.operator()
    for _ in range(4):
        await harness.reconcile()
        # made later than all else, one after the other
        for made, plural in enumerate(("persistentvolumeclaims", "jobs"), start=1):
            for live in harness.fake.of(plural):
                live["metadata"]["creationTimestamp"] = f"2026-02-01T00:00:0{made}Z"
        harness.deployment()
        assert harness.endpoints() == [first]
        assert harness.condition("ArtifactReady") == ("False", "Preparing")
    await harness.settle()
    assert len(asked) == 1
    volumes = {volume["name"]: volume for volume in asked[0]["spec"]["template"]["spec"]["volumes"]}
    claimed = volumes["artifacts"]["persistentVolumeClaim"]["claimName"]
    assert claimed == ("other" if moves else "minilm-artifacts")
    assert harness.condition("Ready") == ("True", "Ready")
    # the same revision on the volume of the same name; one more where its name is another
    assert (harness.serving() == pods) is not moves


def said(harness: Harness) -> Json:
    """Return the status, without the conditions' messages and times, and without Jobs, which may be gone."""
    conditions = {entry["type"]: harness.condition(entry["type"]) for entry in harness.status["conditions"]}
    lasting = {name: value for name, value in harness.status.items() if name not in ("prepJob", "parityJob")}
    return {**lasting, "conditions": conditions}


def branch(live: Json) -> None:
    live["spec"]["source"]["huggingFace"].update(revision="main", allowMutableRevision=True)


async def test_a_branch_is_resolved_once_and_again_only_on_request() -> None:
    harness = Harness()
    await take_a_branch(harness)
    assert harness.status["artifact"]["resolvedRevision"] == "1" * 40
    for change in (lambda live: live["spec"]["serving"].update(maxModelLen=64), wipe):
        harness.edit(change)
        await harness.settle()
        assert harness.status["artifact"]["resolvedRevision"] == "1" * 40
    pods = harness.serving()
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert harness.status["artifact"]["resolvedRevision"] == "2" * 40
    assert harness.serving().isdisjoint(pods)
    assert harness.condition("Ready") == ("True", "Ready")
    # the annotation goes, and so do edits of other fields: what was found last stays
    edits: tuple[Callable[[Json], Any], ...] = (wipe, lambda live: live["spec"]["serving"].update(maxModelLen=65))
    for edit in edits:
        harness.edit(edit)
        await harness.settle()
        assert harness.status["artifact"]["resolvedRevision"] == "2" * 40


async def test_looking_a_branch_up_again_and_finding_the_same_restarts_no_pod() -> None:
    harness = Harness()
    harness.edit(branch)
    await harness.settle()
    pods = harness.serving()
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert len(harness.fake.of("jobs", component="prep")) == 1
    assert harness.serving() == pods
    assert harness.condition("Ready") == ("True", "Ready")


def artifact(harness: Harness) -> str:
    """Return the digest that the newest pods are made for."""
    args = harness.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    return str(args[args.index("--digest") + 1])


async def test_a_rejected_write_is_reported_with_the_rest_of_the_status() -> None:
    harness = Harness()
    await harness.settle()
    shown = harness.status
    error = RequestRejected("apply Job: jobs.batch is forbidden", status=403)
    found = status.status_on_api_error(shown, shown, error, datetime.now(UTC))
    said = {entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"]}
    assert said["Progressing"] == ("False", "WriteRefused")
    assert said["Degraded"] == ("True", "WriteRefused")
    assert said["Ready"] == ("True", "Ready")


@pytest.mark.fault(
    "the operator lacks permission to create Jobs while serving pods restart",
    "`WriteRefused`",
    "verified pods receive traffic again nevertheless",
)
async def test_a_rejected_write_keeps_no_verified_pod_from_its_traffic() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.forbidden = {"POST jobs"}
    harness.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    pod = harness.fake.of("pods", component="serving")[0]
    harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    for _ in range(3):
        with pytest.raises(RequestRejected):
            await harness.reconcile()
        harness.deployment()
    assert len(harness.endpoints()) == 1
    assert harness.condition("Progressing") == ("False", "WriteRefused")
    harness.fake.forbidden = set()
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


@pytest.mark.fault(
    "an admission webhook for Deployments does not answer",
    "`WriteRefused` with the webhook's name",
    "the operator retries within 30 seconds, and pods keep serving",
)
async def test_a_webhook_that_does_not_answer_is_reported() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.webhook_down = {"PATCH deployments"}
    harness.change(maxModelLen=64)
    with pytest.raises(WebhookFailed):
        await harness.reconcile()
    assert harness.condition("Degraded") == ("True", "WriteRefused")
    assert 'failed calling webhook "deployments.example.org"' in harness.message("Degraded")
    assert harness.condition("Available")[0] == "True"
    harness.fake.webhook_down = set()
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


@pytest.mark.fault(
    "the operator lacks permission to read a kind of child",
    "`WriteRefused` with the API server's message",
    "nothing is changed meanwhile",
)
async def test_a_rejected_read_is_reported_and_nothing_is_changed() -> None:
    harness = Harness()
    harness.fake.forbidden = {"GET controllerrevisions"}
    for _ in range(2):
        with pytest.raises(RequestRejected):
            await harness.reconcile()
    assert [write for write in harness.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    assert sorted(event["reason"] for event in harness.fake.of("events")) == ["Degraded", "WriteRefused"]
    assert harness.condition("Degraded") == ("True", "WriteRefused")
    assert "controllerrevisions" in harness.message("Degraded")
    harness.fake.forbidden = set()
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_suspending_wiping_and_resuming_needs_no_new_parity_check() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    harness.edit(spec(suspend=True))
    await harness.settle()
    await wiped(harness)
    harness.edit(spec(suspend=False))
    await harness.settle()
    assert harness.status["readyReplicas"] == 2
    assert len(harness.fake.of("jobs", component="parity")) == 1
