"""What has the labels of a child and another controller, or a part that somebody has added."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.client.errors import RequestRejected
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import Harness, controller, passing_report, with_fields


async def comparing() -> Harness:
    """Return a cluster in which a parity Job has been created and has no pod yet."""
    harness = Harness()
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    assert harness.fake.of("jobs", component="parity")
    return harness


def parity_job(harness: Harness) -> Json:
    (job,) = harness.fake.of("jobs", component="parity")
    return job


def verified(harness: Harness) -> bool:
    return harness.condition("Verified")[0] == "True"


def report(harness: Harness, owners: list[Json], **labels: str | None) -> None:
    """Add a finished pod with the report of a passed check, and with other owners or labels than the real one has."""
    job = copy.deepcopy(parity_job(harness))
    harness.end_job(job, 0, passing_report(job))
    pod = copy.deepcopy(harness.fake.objects["pods", "demo", f"{job['metadata']['name']}-x"])
    pod["metadata"]["ownerReferences"] = owners
    for key, value in labels.items():
        pod["metadata"]["labels"][f"encoders.dev/{key}"] = value
        if value is None:
            del pod["metadata"]["labels"][f"encoders.dev/{key}"]
    harness.fake.put("pods", pod)
    # the Job itself goes on
    job["status"] = {}
    harness.fake.put("jobs", job)


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
    harness = await comparing()
    report(harness, owners(parity_job(harness)))
    await harness.reconcile()
    assert not verified(harness)
    assert harness.fake.of("controllerrevisions", component="verdict") == []
    report(harness, [controller("Job", parity_job(harness))])
    await harness.settle()
    assert verified(harness)


@pytest.mark.parametrize("component", ["prep", "serving", None])
async def test_a_report_counts_only_from_a_pod_of_the_same_component(component: str | None) -> None:
    harness = await comparing()
    report(harness, [controller("Job", parity_job(harness))], component=component)
    await harness.reconcile()
    assert not verified(harness)


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
    harness = await comparing()
    job = copy.deepcopy(parity_job(harness))
    real = job["metadata"]["ownerReferences"]
    job["metadata"]["ownerReferences"] = [owner | {"uid": harness.live["metadata"]["uid"]}]
    harness.fake.put("jobs", job)
    harness.end_job(job, 0, passing_report(job))
    # its name is taken, so no other one can be created
    with pytest.raises(RequestRejected, match="was not created for this object"):
        await harness.reconcile()
    assert not verified(harness)
    assert harness.condition("Degraded") == ("True", "WriteRefused")
    job["metadata"]["ownerReferences"] = real
    harness.fake.put("jobs", job)
    harness.end_job(job, 0, passing_report(job))
    await harness.settle()
    assert verified(harness)


async def test_a_pod_counts_as_serving_only_below_the_models_own_deployment() -> None:
    harness = Harness()
    await harness.settle()
    (pod,) = harness.fake.of("pods", component="serving")
    (replica_set,) = harness.fake.of("replicasets")
    assert harness.status["replicas"] == 1

    async def counted(live: Json, plural: str, owners: list[Json]) -> int:
        changed = copy.deepcopy(live)
        changed["metadata"]["ownerReferences"] = owners
        harness.fake.put(plural, changed)
        await harness.reconciler.reconcile("demo", "minilm")
        found = int(harness.status["replicas"])
        harness.fake.put(plural, copy.deepcopy(live))
        return found

    assert await counted(pod, "pods", []) == 0
    assert await counted(pod, "pods", [controller("ReplicaSet", replica_set) | {"controller": False}]) == 0
    assert await counted(replica_set, "replicasets", []) == 0
    assert await counted(replica_set, "replicasets", [{"kind": "Deployment", "uid": "other", "controller": True}]) == 0
    await harness.settle()
    assert harness.status["replicas"] == 1


async def test_records_count_only_if_the_model_controls_them() -> None:
    harness = Harness()
    await harness.settle()
    (record,) = harness.fake.of("controllerrevisions", component="verdict")
    forged = copy.deepcopy(record)
    forged["metadata"] |= {
        "name": "forged",
        "uid": "forged",
        "ownerReferences": [{"kind": "StatefulSet", "uid": "s", "controller": True}],
    }
    # what the StatefulSet controller keeps in one
    forged["data"] = {"spec": {"template": {}}}
    harness.fake.put("controllerrevisions", forged)
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


@pytest.mark.parametrize("label", [naming.MODEL, naming.MANAGED_BY])
async def test_a_label_of_a_child_that_another_client_changes_is_set_back(label: str) -> None:
    harness = Harness(with_fields({"spec.network.networkPolicy": {}}))
    await harness.settle()
    for plural in ("deployments", "services", "networkpolicies"):
        (child,) = copy.deepcopy(harness.fake.of(plural))
        wanted = child["metadata"]["labels"].pop(label)
        harness.fake.put(plural, child)
        await harness.reconcile()
        assert harness.condition("Accepted") == ("True", "Accepted")
        assert harness.fake.objects[plural, "demo", "minilm"]["metadata"]["labels"][label] == wanted


async def test_a_pod_with_an_ephemeral_container_is_not_compared() -> None:
    harness = Harness()
    harness.starts = lambda pod: pod["spec"].update(ephemeralContainers=[{"name": "shell"}])
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    assert harness.fake.of("jobs", component="parity") == []
    assert "has an ephemeral container" in harness.message("Verified")
    harness.starts = lambda pod: None
    (pod,) = harness.fake.of("pods", component="serving")
    harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    await harness.settle()
    assert verified(harness)


async def test_a_verdict_on_a_pod_that_got_an_ephemeral_container_is_not_accepted() -> None:
    harness = await comparing()
    (pod,) = copy.deepcopy(harness.fake.of("pods", component="serving"))
    pod["spec"]["ephemeralContainers"] = [{"name": "shell"}]
    harness.fake.put("pods", pod)
    report(harness, [controller("Job", parity_job(harness))])
    await harness.reconcile()
    assert not verified(harness)
    assert harness.endpoints() == []


async def test_a_pod_that_failed_has_not_passed() -> None:
    harness = await comparing()
    job = parity_job(harness)
    harness.end_job(job, 2, passing_report(job))
    await harness.reconcile()
    assert harness.condition("Verified") == ("Unknown", "Inconclusive")
    assert "reported Passed but failed with exit code 2" in harness.message("Verified")


async def test_a_container_that_has_the_name_of_another_components_says_nothing() -> None:
    harness = Harness()
    reports = {"exitCode": 1, "message": "early", "finishedAt": "2026-01-01T00:00:00Z"}

    def add(pod: Json) -> None:
        # listed before the engine
        added = {"name": "prepare", "containerID": "c", "imageID": "other", "state": {"terminated": reports}}
        pod["status"]["containerStatuses"].insert(0, added)

    harness.starts = add
    await harness.settle()
    (record,) = harness.fake.of("controllerrevisions", component="verdict")
    assert record["data"]["binding"]["imageID"] == "sha256:1"


async def test_the_gate_tells_since_when_it_has_its_status() -> None:
    harness = Harness()
    await harness.settle()

    def gate() -> Json:
        (pod,) = harness.fake.of("pods", component="serving")
        return next(entry for entry in pod["status"]["conditions"] if entry["type"] == naming.GATE)

    since = gate()["lastTransitionTime"]
    assert since
    # another message is no transition
    (pod,) = copy.deepcopy(harness.fake.of("pods", component="serving"))
    for entry in pod["status"]["conditions"]:
        if entry["type"] == naming.GATE:
            entry |= {"message": "other", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    harness.fake.put("pods", pod)
    await harness.reconcile()
    assert gate()["message"] != "other"
    assert gate()["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    # another status is one
    (pod,) = copy.deepcopy(harness.fake.of("pods", component="serving"))
    for entry in pod["status"]["conditions"]:
        if entry["type"] == naming.GATE:
            entry["status"] = "False"
    harness.fake.put("pods", pod)
    await harness.reconcile()
    assert gate()["status"] == "True"
    assert gate()["lastTransitionTime"] != "2026-01-01T00:00:00Z"
