"""State is on the cluster: what can be wiped, restarted or upgraded without a pod noticing, and what each pod must prove by itself."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import Resources
from encoder_operator.client.errors import RequestRejected
from encoder_operator.controller.tests.test_rollouts import give_up, spec
from encoder_operator.resources import serving_pod_template
from encoder_operator.revisions import revision
from encoder_operator.state.desired import parse_model
from encoder_operator.state.observed import format_time
from encoder_operator.status import status
from encoder_operator.tests.cluster_fake import Json
from encoder_operator.tests.world import PLUGIN, PREPARED, SETTINGS, World, annotate, changed, fails, model, passes

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


async def wiped(world: World) -> None:
    """Wipe what is not in the spec, restart the operator, and let nothing come of it."""
    before, pods = copy.deepcopy(world.status), world.serving()
    world.edit(wipe)
    world.reconciler = world.operator()
    world.fake.writes.clear()
    await world.settle()
    assert world.serving() == pods
    assert [w for w in world.fake.writes if "events" not in w] == ["PATCH encodermodels/status minilm"]
    for shown in (before, world.status):
        for entry in shown["conditions"]:
            del entry["lastTransitionTime"]
    assert world.status == before


async def test_wiping_after_a_rollout_changes_nothing() -> None:
    world = World(model(replicas=2))
    await world.settle()
    world.change(maxModelLen=64)
    await world.settle()
    await wiped(world)


async def test_wiping_after_an_update_to_new_defaults_does_not_bring_the_old_ones_back() -> None:
    world = World()
    await world.settle()
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}})
    world.operator_settings = SETTINGS.model_copy(update={"images": newer})
    world.reconciler = world.operator()
    world.edit(annotate(update="1"))
    await world.settle()
    assert world.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"
    await wiped(world)


async def test_wiping_after_a_failed_retry_does_not_try_again() -> None:
    world = World()
    await world.settle()
    world.parity = fails
    world.change(maxModelLen=64)
    await world.settle()
    world.edit(annotate(retry="1"))
    await world.settle()
    assert len(world.fake.of("jobs", component="parity")) == 3
    world.parity = passes
    await wiped(world)
    assert world.condition("UpToDate") == ("False", "ParityFailed")


async def test_wiping_while_a_preparation_has_failed_starts_none() -> None:
    world = World()
    world.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    await world.settle()
    world.edit(annotate(retry="1"))
    await world.settle()
    await wiped(world)


async def test_an_update_that_an_older_operator_recorded_is_known_again() -> None:
    world = World()
    world.edit(annotate(update="1"))
    await world.settle()
    record = world.fake.of("controllerrevisions", component="revision")[0]
    # as 0.1.0 wrote it: the annotation is part of the label's hash, and nowhere else
    record["metadata"]["labels"]["encoders.dev/inputs"] = revision.inputs_hash(parse_model(world.live, SETTINGS), "1")
    for told in ("annotations", "labels"):
        del record["metadata"][told]["encoders.dev/update"]
    pods = world.serving()
    await world.settle()
    assert world.serving() == pods
    assert (
        record["metadata"]["name"] == world.fake.of("controllerrevisions", component="revision")[0]["metadata"]["name"]
    )
    await wiped(world)


async def test_another_version_of_the_operator_restarts_no_pod_of_twenty_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worlds = [World(changed(changes)) for changes in LIVES]
    assert len(worlds) == 20
    for world in worlds:
        await world.settle()
    pods = [world.serving() for world in worlds]
    templates = [copy.deepcopy(world.fake.of("deployments")[0]["spec"]["template"]) for world in worlds]
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
    for world in worlds:
        world.operator_settings = settings
        world.reconciler = world.operator()
        world.fake.writes.clear()
        await world.settle()
        assert world.fake.writes == ["PATCH encodermodels/status minilm"]
        assert world.condition("UpdateAvailable") == ("True", "NewDefaults")
        assert world.condition("Ready") == ("True", "Ready")
    assert [world.serving() for world in worlds] == pods
    assert [world.fake.of("deployments")[0]["spec"]["template"] for world in worlds] == templates
    # the old version comes back: a rollback of the operator is as quiet
    for world in worlds:
        world.operator_settings = SETTINGS
        world.reconciler = world.operator()
        await world.settle()
    assert [world.serving() for world in worlds] == pods


async def test_a_container_with_another_image_is_not_proved_by_the_former_one() -> None:
    world = World(model(replicas=2))
    await world.settle()
    world.parity = fails
    pod = copy.deepcopy(world.fake.of("pods", component="serving")[0])
    pod["status"]["containerStatuses"][0] |= {"imageID": "sha256:2", "containerID": "containerd://another"}
    world.fake.put("pods", pod)
    await world.settle()
    assert len(world.endpoints()) == 1
    assert world.condition("Degraded") == ("True", "ParityFailed")
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("Ready") == ("True", "Ready")


@pytest.mark.fault(
    "the operator's clock is an hour ahead, or behind",
    "nothing",
    "times are taken by the API server's clock: nothing is given up early, or tried late",
)
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_wrong_gives_nothing_up_early_and_tries_nothing_late(hours: int) -> None:
    world = World()
    await world.settle()
    world.fake.ahead = timedelta(hours=hours)
    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    world.change(maxModelLen=64)
    await world.settle()
    assert world.condition("UpToDate") == ("False", "Inconclusive")
    assert 0 < (await world.look() or 0) <= 10
    assert len(world.fake.of("jobs", component="parity")) == 2
    world.change(maxModelLen=65)

    def hangs(pod: Json) -> None:
        pod["metadata"]["creationTimestamp"] = format_time(world.fake.now() - timedelta(seconds=60))
        pod["status"]["conditions"][0]["status"] = "False"

    world.starts = hangs
    await world.settle()
    assert await world.look() == pytest.approx(1800, abs=60)
    changed = next(entry for entry in world.status["conditions"] if entry["type"] == "Progressing")
    at = datetime.fromisoformat(changed["lastTransitionTime"])
    assert abs(at - world.fake.now()) < timedelta(minutes=30)


async def rolled_out(world: World) -> None:
    world.change(maxModelLen=64)
    await world.settle()


async def updated(world: World) -> None:
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}})
    world.operator_settings = SETTINGS.model_copy(update={"images": newer})
    world.reconciler = world.operator()
    world.edit(annotate(update="1"))
    await world.settle()
    # what the update has brought is not today's any more
    world.operator_settings = SETTINGS
    world.reconciler = world.operator()
    await world.settle()


async def failed_twice(world: World) -> None:
    world.parity = fails
    world.change(maxModelLen=64)
    await world.settle()
    world.edit(annotate(retry="2026-11-21T10:00:00Z"))
    await world.settle()
    world.parity = passes


async def take_a_branch(world: World) -> None:
    """Prepare from a branch that is at another commit each time it is looked up."""
    commits = iter("123456")

    def prepare(job: Json) -> tuple[int, Json]:
        letter = next(commits)
        return 0, PREPARED | {"digest": "sha256:" + letter * 64, "revision": letter * 40}

    world.prep = prepare
    world.parity = lambda job: passes(job) | {"artifact": artifact(world)}
    world.edit(branch)
    await world.settle()


async def followed_a_branch(world: World) -> None:
    await take_a_branch(world)
    world.edit(annotate(retry="1"))
    await world.settle()


@pytest.mark.fault(
    "all annotations are taken away, those of the operator's own records too, and the operator restarts",
    "the same conditions as before",
    "no pod changes, nothing is tried, prepared or looked up again",
)
@pytest.mark.parametrize("kept", [False, True], ids=["the model's too", "but the model's"])
@pytest.mark.parametrize("lived", [rolled_out, updated, failed_twice, give_up, followed_a_branch])
async def test_nothing_rolls_without_any_annotation(
    lived: Callable[[World], Awaitable[None]],
    kept: bool,
) -> None:
    world = World()
    await world.settle()
    await lived(world)
    before, pods = said(world), world.serving()
    for kind in ("controllerrevisions", "deployments", "services", "pods", "persistentvolumeclaims"):
        for live in world.fake.of(kind):
            live["metadata"].pop("annotations", None)
    for job in world.fake.of("jobs"):
        world.fake.remove("jobs", "demo", job["metadata"]["name"])
    world.edit((lambda live: live.pop("status")) if kept else wipe)
    world.reconciler = world.operator()
    world.fake.writes.clear()
    await world.settle()
    assert world.serving() == pods
    assert [w for w in world.fake.writes if "events" not in w] == ["PATCH encodermodels/status minilm"]
    assert said(world) == before


async def test_a_record_of_an_older_operator_without_these_labels_is_no_reason_to_write() -> None:
    world = World()
    await followed_a_branch(world)
    for record in world.fake.of("controllerrevisions", component="revision"):
        for label in ("claim-uid", "origin", "retry"):
            record["metadata"]["labels"].pop(f"encoders.dev/{label}", None)
    world.reconciler = world.operator()
    world.fake.writes.clear()
    await world.settle()
    assert world.fake.writes == []


@pytest.mark.fault(
    "the claim that holds the artifact is deleted and made again, or the model moves to another claim",
    "`Preparing`",
    "the artifact is prepared again on the volume of today; what serves serves on",
)
@pytest.mark.parametrize("moves", [False, True], ids=["made again", "another one"])
async def test_what_a_job_has_said_of_a_volume_that_is_gone_is_not_believed(moves: bool) -> None:
    world = World()
    await world.settle()
    first, pods, asked = world.status["activeRevision"], world.serving(), []
    world.prep = lambda job: asked.append(job) or (0, PREPARED)  # type: ignore[func-returns-value]
    if moves:
        other = {"metadata": {"name": "other", "namespace": "demo"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        world.fake.put("persistentvolumeclaims", other)
        world.edit(spec(storage={"claimName": "other"}))
    else:
        world.fake.remove("persistentvolumeclaims", "demo", "minilm-artifacts")
    world.reconciler = world.operator()
    for _ in range(4):
        await world.look()
        # made later than all else, one after the other
        for made, plural in enumerate(("persistentvolumeclaims", "jobs"), start=1):
            for live in world.fake.of(plural):
                live["metadata"]["creationTimestamp"] = f"2026-02-01T00:00:0{made}Z"
        world.deployment()
        assert world.endpoints() == [first]
        assert world.condition("ArtifactReady") == ("False", "Preparing")
    await world.settle()
    assert len(asked) == 1
    volumes = {volume["name"]: volume for volume in asked[0]["spec"]["template"]["spec"]["volumes"]}
    claimed = volumes["artifacts"]["persistentVolumeClaim"]["claimName"]
    assert claimed == ("other" if moves else "minilm-artifacts")
    assert world.condition("Ready") == ("True", "Ready")
    # the same revision on the volume of the same name; one more where its name is another
    assert (world.serving() == pods) is not moves


def said(world: World) -> Json:
    """Return the status, without the conditions' messages and times."""
    conditions = {entry["type"]: world.condition(entry["type"]) for entry in world.status["conditions"]}
    return {**world.status, "conditions": conditions}


def branch(live: Json) -> None:
    live["spec"]["source"]["huggingFace"].update(revision="main", allowMutableRevision=True)


async def test_a_branch_is_looked_up_once_and_again_only_when_asked() -> None:
    world = World()
    await take_a_branch(world)
    assert world.status["artifact"]["resolvedRevision"] == "1" * 40
    for change in (lambda live: live["spec"]["serving"].update(maxModelLen=64), wipe):
        world.edit(change)
        await world.settle()
        assert world.status["artifact"]["resolvedRevision"] == "1" * 40
    pods = world.serving()
    world.edit(annotate(retry="1"))
    await world.settle()
    assert world.status["artifact"]["resolvedRevision"] == "2" * 40
    assert world.serving().isdisjoint(pods)
    assert world.condition("Ready") == ("True", "Ready")
    # the annotation goes, and so do edits of other fields: what was found last stays
    edits: tuple[Callable[[Json], Any], ...] = (wipe, lambda live: live["spec"]["serving"].update(maxModelLen=65))
    for edit in edits:
        world.edit(edit)
        await world.settle()
        assert world.status["artifact"]["resolvedRevision"] == "2" * 40


async def test_looking_a_branch_up_again_and_finding_the_same_restarts_no_pod() -> None:
    world = World()
    world.edit(branch)
    await world.settle()
    pods = world.serving()
    world.edit(annotate(retry="1"))
    await world.settle()
    assert len(world.fake.of("jobs", component="prep")) == 1
    assert world.serving() == pods
    assert world.condition("Ready") == ("True", "Ready")


def artifact(world: World) -> str:
    """Return the digest that the newest pods are made for."""
    args = world.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    return str(args[args.index("--digest") + 1])


async def test_a_refused_write_is_said_beside_all_else() -> None:
    world = World()
    await world.settle()
    shown = world.status
    error = RequestRejected("apply Job: jobs.batch is forbidden", status=403)
    found = status.status_on_api_error(shown, shown, error, datetime.now(UTC))
    said = {entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"]}
    assert said["Progressing"] == ("False", "WriteRefused")
    assert said["Degraded"] == ("True", "WriteRefused")
    assert said["Ready"] == ("True", "Ready")


@pytest.mark.fault(
    "the operator may not make Jobs while what serves restarts",
    "`WriteRefused`",
    "pods that are proved get their traffic back all the same",
)
async def test_a_refused_write_keeps_no_proved_pod_from_its_traffic() -> None:
    world = World()
    await world.settle()
    world.fake.forbidden = {"POST jobs"}
    world.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    pod = world.fake.of("pods", component="serving")[0]
    world.fake.remove("pods", "demo", pod["metadata"]["name"])
    for _ in range(3):
        with pytest.raises(RequestRejected):
            await world.look()
        world.deployment()
    assert len(world.endpoints()) == 1
    assert world.condition("Progressing") == ("False", "WriteRefused")
    world.fake.forbidden = set()
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


@pytest.mark.fault(
    "the operator may not read a kind of child",
    "`WriteRefused` with the API server's words",
    "nothing is changed meanwhile",
)
async def test_what_can_not_be_read_is_said_and_nothing_is_changed() -> None:
    world = World()
    world.fake.forbidden = {"GET controllerrevisions"}
    for _ in range(2):
        with pytest.raises(RequestRejected):
            await world.look()
    assert world.fake.writes == ["PATCH encodermodels/status minilm"]
    assert world.condition("Degraded") == ("True", "WriteRefused")
    assert "controllerrevisions" in world.said("Degraded")
    world.fake.forbidden = set()
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_suspending_and_wiping_and_resuming_needs_no_new_proof() -> None:
    world = World(model(replicas=2))
    await world.settle()
    world.edit(spec(suspend=True))
    await world.settle()
    await wiped(world)
    world.edit(spec(suspend=False))
    await world.settle()
    assert world.status["readyReplicas"] == 2
    assert len(world.fake.of("jobs", component="parity")) == 1
