"""Serving and parity pods that a container of the user, a Secret or a volume keeps from starting: the cause is in the status at once."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import Harness, controller

WAITS: Json = {"waiting": {"reason": "PodInitializing"}}
CRASHED: Json = {"exitCode": 3, "reason": "Error", "message": "no such host\n"}


def container(name: str, state: Json, **more: Any) -> Json:
    return {"name": name, "state": state, **more}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


async def status_with(harness: Harness, **status: Any) -> Harness:
    """Return a cluster whose serving pods have this status."""

    def starts(pod: Json) -> None:
        pod["status"] = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], **status}

    harness.starts = starts
    await harness.settle()
    await harness.reconcile()
    return harness


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            {
                "containerStatuses": [container("engine", WAITS)],
                "initContainerStatuses": [container("wait", waiting("ImagePullBackOff", 'pulling image "wait:1"'))],
            },
            "ImagePullFailed",
            'pulling image "wait:1"',
        ),
        (
            {
                "containerStatuses": [container("engine", WAITS)],
                "initContainerStatuses": [
                    container("wait", waiting("CrashLoopBackOff"), lastState={"terminated": CRASHED})
                ],
            },
            "CrashLoop",
            "Container wait of pod {pod} exited with code 3: no such host",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container("engine", {"running": {}}),
                    container("log", waiting("CrashLoopBackOff"), lastState={"terminated": {"reason": "OOMKilled"}}),
                ],
            },
            "OutOfMemory",
            "Container log of pod {pod} exceeded its memory limit",
        ),
        (
            {"containerStatuses": [container("engine", waiting("CreateContainerConfigError", 'secret "s" not found'))]},
            "TokenSecretMissing",
            'secret "s" not found',
        ),
        (
            {"containerStatuses": [container("engine", waiting("CreateContainerError", "no such device"))]},
            "CrashLoop",
            "Pod {pod} cannot create its container: no such device",
        ),
    ],
    ids=["init-container-image", "init-container-exits", "sidecar-memory", "secret", "not-created"],
)
async def test_what_keeps_a_serving_pod_from_starting_is_in_its_status(status: Json, reason: str, message: str) -> None:
    harness = await status_with(Harness(), **status)
    pod = harness.fake.of("pods", component="serving")[0]["metadata"]["name"]
    for condition, value in (("Available", "False"), ("Degraded", "True"), ("Progressing", "False")):
        assert harness.condition(condition) == (value, reason)
    assert harness.message("Available") == message.format(pod=pod)


@pytest.mark.parametrize(
    ("event", "reason", "message"),
    [
        ("FailedMount", "VolumeNotMounted", "{said}"),
        ("FailedAttachVolume", "VolumeNotMounted", "{said}"),
        ("FailedCreatePodSandBox", "CrashLoop", "Pod {pod} cannot be created on node node: {said}"),
    ],
)
async def test_what_only_events_say_is_reported_until_the_pod_goes_on(event: str, reason: str, message: str) -> None:
    engine = container("engine", waiting("ContainerCreating"))
    harness = await status_with(Harness(), containerStatuses=[engine])
    pod = harness.fake.of("pods", component="serving")[0]["metadata"]

    async def happens(what: str, said: str, second: int) -> None:
        harness.fake.put(
            "events",
            {
                "metadata": {"name": what, "namespace": "demo"},
                "involvedObject": {"uid": pod["uid"]},
                "reason": what,
                "message": said,
                "lastTimestamp": f"2026-01-01T00:00:0{second}Z",
            },
        )
        # Events are not watched
        assert await harness.reconcile() == 30.0

    await happens("Scheduled", "assigned", 1)
    assert harness.condition("Available") == ("False", "NoReadyPods")
    await happens(event, "no such thing", 2)
    assert harness.condition("Available") == ("False", reason)
    assert harness.message("Available") == message.format(pod=pod["name"], said="no such thing")
    # a large image may take long after that
    await happens("Pulling", "pulling image", 3)
    assert harness.condition("Available") == ("False", "NoReadyPods")
    assert harness.condition("Degraded")[0] == "False"


async def test_what_keeps_a_parity_pod_from_starting_is_in_the_status() -> None:
    harness = Harness()
    while not (jobs := harness.fake.of("jobs", component="parity")):
        harness.jobs()
        harness.deployment()
        await harness.reconcile()
    (job,), (compared,) = jobs, harness.fake.of("pods", component="serving")
    engine = container("parity", waiting("ContainerCreating"))
    metadata = {
        "name": f"{job['metadata']['name']}-x",
        "namespace": "demo",
        "labels": job["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [controller("Job", job)],
    }
    status = {"phase": "Pending", "containerStatuses": [engine]}
    pod = harness.fake.put("pods", {"metadata": metadata, "spec": {"nodeName": "node"}, "status": status})
    said = 'Multi-Attach error for volume "pvc-1"'
    event = {"reason": "FailedAttachVolume", "message": said, "involvedObject": {"uid": pod["metadata"]["uid"]}}
    harness.fake.put("events", {"metadata": {"name": "attach", "namespace": "demo"}, **event})
    # Events are not watched
    assert await harness.reconcile() == 30.0
    name = f"Job {job['metadata']['name']} for pod {compared['metadata']['name']}"
    assert harness.message("Verified") == f"{name} cannot start: {said}"
