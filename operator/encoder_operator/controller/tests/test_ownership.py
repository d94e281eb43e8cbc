"""What has the labels of a child and another controller, or a part that somebody has added."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.client.errors import RequestRejected
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.world import World, controller, passes


async def comparing() -> World:
    """Return a cluster in which a parity Job has been created and has no pod yet."""
    world = World()
    await world.look()
    world.jobs()
    await world.look()
    world.deployment()
    await world.look()
    assert world.fake.of("jobs", component="parity")
    return world


def parity_job(world: World) -> Json:
    (job,) = world.fake.of("jobs", component="parity")
    return job


def verified(world: World) -> bool:
    return world.condition("Verified")[0] == "True"


def report(world: World, owners: list[Json], **labels: str | None) -> None:
    """Add a finished pod with the report of a passed check, and with other owners or labels than the real one has."""
    job = copy.deepcopy(parity_job(world))
    world.end_job(job, 0, passes(job))
    pod = copy.deepcopy(world.fake.objects["pods", "demo", f"{job['metadata']['name']}-x"])
    pod["metadata"]["ownerReferences"] = owners
    for key, value in labels.items():
        pod["metadata"]["labels"][f"encoders.dev/{key}"] = value
        if value is None:
            del pod["metadata"]["labels"][f"encoders.dev/{key}"]
    world.fake.put("pods", pod)
    # the Job itself goes on
    job["status"] = {}
    world.fake.put("jobs", job)


def other_controller(job: Json) -> list[Json]:
    return [{"kind": "Job", "name": "other", "uid": "other", "controller": True}]


def owner_only(job: Json) -> list[Json]:
    return [controller("Job", job) | {"controller": False}]


def second_owner(job: Json) -> list[Json]:
    return [
        {"kind": "Pod", "name": "x", "uid": "x", "controller": True},
        controller("Job", job) | {"controller": False},
    ]


@pytest.mark.parametrize("owners", [lambda job: [], other_controller, owner_only, second_owner])
async def test_a_report_counts_only_from_a_pod_that_the_parity_job_controls(owners: Any) -> None:
    world = await comparing()
    report(world, owners(parity_job(world)))
    await world.look()
    assert not verified(world)
    assert world.fake.of("controllerrevisions", component="verdict") == []
    report(world, [controller("Job", parity_job(world))])
    await world.settle()
    assert verified(world)


@pytest.mark.parametrize("component", ["prep", "serving", None])
async def test_a_report_counts_only_from_a_pod_of_the_same_component(component: str | None) -> None:
    world = await comparing()
    report(world, [controller("Job", parity_job(world))], component=component)
    await world.look()
    assert not verified(world)


@pytest.mark.parametrize(
    "owner",
    [
        {"kind": "EncoderModel", "apiVersion": "encoders.dev/v1alpha1", "name": "minilm", "controller": False},
        {"kind": "CronJob", "apiVersion": "batch/v1", "name": "minilm", "controller": True},
        {"kind": "EncoderModel", "apiVersion": "example.org/v1", "name": "minilm", "controller": True},
    ],
    ids=["not-the-controller", "another-kind", "another-group"],
)
async def test_a_job_counts_only_if_the_model_controls_it(owner: Json) -> None:
    world = await comparing()
    job = copy.deepcopy(parity_job(world))
    real = job["metadata"]["ownerReferences"]
    job["metadata"]["ownerReferences"] = [owner | {"uid": world.live["metadata"]["uid"]}]
    world.fake.put("jobs", job)
    world.end_job(job, 0, passes(job))
    # its name is taken, so no other one can be created
    with pytest.raises(RequestRejected, match="was not created for this object"):
        await world.look()
    assert not verified(world)
    assert world.condition("Degraded") == ("True", "WriteRefused")
    job["metadata"]["ownerReferences"] = real
    world.fake.put("jobs", job)
    world.end_job(job, 0, passes(job))
    await world.settle()
    assert verified(world)


async def test_a_pod_counts_as_serving_only_below_the_models_own_deployment() -> None:
    world = World()
    await world.settle()
    (pod,) = world.fake.of("pods", component="serving")
    (replica_set,) = world.fake.of("replicasets")
    assert world.status["replicas"] == 1

    async def counted(live: Json, plural: str, owners: list[Json]) -> int:
        changed = copy.deepcopy(live)
        changed["metadata"]["ownerReferences"] = owners
        world.fake.put(plural, changed)
        await world.reconciler.reconcile("demo", "minilm")
        found = int(world.status["replicas"])
        world.fake.put(plural, copy.deepcopy(live))
        return found

    assert await counted(pod, "pods", []) == 0
    assert await counted(pod, "pods", [controller("ReplicaSet", replica_set) | {"controller": False}]) == 0
    assert await counted(replica_set, "replicasets", []) == 0
    assert await counted(replica_set, "replicasets", [{"kind": "Deployment", "uid": "other", "controller": True}]) == 0
    await world.settle()
    assert world.status["replicas"] == 1


async def test_records_count_only_if_the_model_controls_them() -> None:
    world = World()
    await world.settle()
    (record,) = world.fake.of("controllerrevisions", component="verdict")
    forged = copy.deepcopy(record)
    forged["metadata"] |= {
        "name": "forged",
        "uid": "forged",
        "ownerReferences": [{"kind": "StatefulSet", "uid": "s", "controller": True}],
    }
    # what the StatefulSet controller keeps in one
    forged["data"] = {"spec": {"template": {}}}
    world.fake.put("controllerrevisions", forged)
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_a_pod_with_an_ephemeral_container_is_not_compared() -> None:
    world = World()
    world.starts = lambda pod: pod["spec"].update(ephemeralContainers=[{"name": "shell"}])
    await world.look()
    world.jobs()
    await world.look()
    world.deployment()
    await world.look()
    assert world.fake.of("jobs", component="parity") == []
    assert "has an ephemeral container" in world.said("Verified")
    world.starts = lambda pod: None
    (pod,) = world.fake.of("pods", component="serving")
    world.fake.remove("pods", "demo", pod["metadata"]["name"])
    await world.settle()
    assert verified(world)


async def test_a_verdict_on_a_pod_that_got_an_ephemeral_container_is_not_accepted() -> None:
    world = await comparing()
    (pod,) = copy.deepcopy(world.fake.of("pods", component="serving"))
    pod["spec"]["ephemeralContainers"] = [{"name": "shell"}]
    world.fake.put("pods", pod)
    report(world, [controller("Job", parity_job(world))])
    await world.look()
    assert not verified(world)
    assert world.endpoints() == []


async def test_a_pod_that_failed_has_not_passed() -> None:
    world = await comparing()
    job = parity_job(world)
    world.end_job(job, 2, passes(job))
    await world.look()
    assert world.condition("Verified") == ("False", "Inconclusive")
    assert "reported Passed but failed with exit code 2" in world.said("Verified")


async def test_a_container_that_has_the_name_of_another_components_says_nothing() -> None:
    world = World()
    reports = {"exitCode": 1, "message": "early", "finishedAt": "2026-01-01T00:00:00Z"}

    def add(pod: Json) -> None:
        # listed before the engine
        added = {"name": "prepare", "containerID": "c", "imageID": "other", "state": {"terminated": reports}}
        pod["status"]["containerStatuses"].insert(0, added)

    world.starts = add
    await world.settle()
    (record,) = world.fake.of("controllerrevisions", component="verdict")
    assert record["data"]["binding"]["imageID"] == "sha256:1"


async def test_the_gate_tells_since_when_it_has_its_status() -> None:
    world = World()
    await world.settle()

    def gate() -> Json:
        (pod,) = world.fake.of("pods", component="serving")
        return next(entry for entry in pod["status"]["conditions"] if entry["type"] == naming.GATE)

    since = gate()["lastTransitionTime"]
    assert since
    # another message is no transition
    (pod,) = copy.deepcopy(world.fake.of("pods", component="serving"))
    for entry in pod["status"]["conditions"]:
        if entry["type"] == naming.GATE:
            entry |= {"message": "other", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    world.fake.put("pods", pod)
    await world.look()
    assert gate()["message"] != "other"
    assert gate()["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    # another status is one
    (pod,) = copy.deepcopy(world.fake.of("pods", component="serving"))
    for entry in pod["status"]["conditions"]:
        if entry["type"] == naming.GATE:
            entry["status"] = "False"
    world.fake.put("pods", pod)
    await world.look()
    assert gate()["status"] == "True"
    assert gate()["lastTransitionTime"] != "2026-01-01T00:00:00Z"
