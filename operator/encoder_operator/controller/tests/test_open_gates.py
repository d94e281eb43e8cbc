"""A gate that is open closes only if the image changed or a comparison failed: what is merely unknown takes no pod off the network."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import Harness, encoder_model, failing_report, passing_report

PRODUCT = "nvidia.com/gpu.product"


def gpu_model(replicas: int = 2) -> Harness:
    """Return a cluster whose only node has a product label, with a model that serves on it."""
    harness = Harness(encoder_model(accelerator="nvidia", replicas=replicas))
    label_node(harness, "NVIDIA-H200")
    return harness


def label_node(harness: Harness, product: str | None) -> None:
    harness.fake.put("nodes", {"metadata": {"name": "node", "labels": {PRODUCT: product} if product else {}}})
    # one that has not read the node's labels before
    harness.reconciler = harness.operator()


def gates(harness: Harness) -> list[tuple[str, str]]:
    """Return status and reason of the gates of the serving pods."""
    conditions = [
        {entry["type"]: entry for entry in pod["status"]["conditions"]}
        for pod in harness.fake.of("pods", component="serving")
    ]
    return [(found["encoders.dev/parity"]["status"], found["encoders.dev/parity"]["reason"]) for found in conditions]


def parity(**changes: Any) -> Any:
    return lambda live: live["spec"].setdefault("parity", {}).update(changes)


@pytest.mark.fault(
    "a node loses the label of its GPU product, as while gpu-feature-discovery restarts",
    "nothing",
    "pods that serve keep their product and their traffic; new pods are verified for the node",
)
async def test_a_vanished_product_label_closes_no_gate() -> None:
    harness = gpu_model()
    await harness.settle()
    label_node(harness, None)
    harness.parity = failing_report
    await harness.settle()
    assert gates(harness) == [("True", "ParityPassed")] * 2
    assert len(harness.endpoints()) == 2
    # a new pod is on a node whose product nobody knows
    harness.change(replicas=3)
    await harness.settle()
    assert sorted(gates(harness)) == [("False", "ParityFailed"), ("True", "ParityPassed"), ("True", "ParityPassed")]
    label_node(harness, "NVIDIA-H200")
    await harness.settle()
    products = {found["data"]["product"] for found in harness.fake.of("controllerrevisions", component="verdict")}
    assert products == {"NVIDIA-H200", "node:node"}


async def test_a_container_with_another_image_closes_the_gate_of_a_pod_without_a_product_label() -> None:
    harness = gpu_model(replicas=1)
    await harness.settle()
    label_node(harness, None)
    (pod,) = copy.deepcopy(harness.fake.of("pods", component="serving"))
    pod["status"]["containerStatuses"][0] |= {"imageID": "sha256:2", "containerID": "containerd://2"}
    harness.fake.put("pods", pod)
    await harness.reconcile()
    assert gates(harness) == [("False", "NotVerified")]


@pytest.mark.fault(
    "the verdict of a revision that serves is deleted",
    "`ParityPending` on Verified and Ready",
    "pods that serve keep their traffic while the revision is compared again; new pods get none before that",
)
@pytest.mark.parametrize(("report", "left"), [(passing_report, 3), (failing_report, 0)], ids=["passes", "fails"])
async def test_pods_keep_traffic_without_a_verdict_until_they_are_compared(report: Any, left: int) -> None:
    harness = gpu_model()
    await harness.settle()
    forget_verdicts(harness)
    harness.change(replicas=3)
    await harness.reconcile()
    harness.deployment()
    await harness.reconcile()
    for pod in harness.fake.of("pods", component="serving"):
        harness._kubelet(pod)
    assert len(harness.fake.of("pods", component="serving")) == 3
    assert len(harness.endpoints()) == 2
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Ready")[0] == "Unknown"
    harness.parity = report
    await harness.settle()
    assert len(harness.endpoints()) == left


@pytest.mark.fault(
    "parity checks are enabled for a model that serves without one",
    "`ParityRunning`, then `ParityPassed` or `ParityFailed`",
    "its pods keep serving, in their number, until they are compared",
)
@pytest.mark.parametrize("report", [passing_report, failing_report], ids=["passes", "fails"])
async def test_enabling_parity_checks_closes_no_gate_before_the_comparison(report: Any) -> None:
    manifest = encoder_model(replicas=3)
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    harness = Harness(manifest)
    await harness.settle()
    assert gates(harness) == [("True", "Disabled")] * 3
    serving = harness.serving()
    harness.edit(parity(mode="Enforce"))
    for _ in range(3):
        # the parity Job is created and has no result yet
        await harness.reconcile()
        harness.deployment()
        assert (harness.serving(), len(harness.endpoints())) == (serving, 3)
    assert len(harness.fake.of("jobs", component="parity")) == 1
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Verified") == ("Unknown", "ParityRunning")
    harness.parity = report
    await harness.settle()
    if report is passing_report:
        assert gates(harness) == [("True", "ParityPassed")] * 3
        assert harness.serving() == serving
        assert harness.condition("Ready") == ("True", "Ready")
    else:
        assert harness.endpoints() == []
        assert harness.condition("Ready") == ("False", "ParityFailed")


async def test_parity_checks_enabled_before_the_platform_was_recorded_close_no_gate() -> None:
    manifest = encoder_model(replicas=2)
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    harness = Harness(manifest)
    await harness.settle()
    for pod in copy.deepcopy(harness.fake.of("pods", component="serving")):
        # as the operator left them before their nodes and images were known
        pod["status"]["conditions"] = [
            entry for entry in pod["status"]["conditions"] if entry["type"] != "encoders.dev/platform"
        ]
        harness.fake.put("pods", pod)
    harness.edit(parity(mode="Enforce"))
    for _ in range(3):
        await harness.reconcile()
        assert gates(harness) == [("True", "NotVerified")] * 2
    harness.parity = failing_report
    await harness.settle()
    assert harness.endpoints() == []


async def test_enabling_parity_checks_together_with_an_edit_keeps_the_unverified_revision_until_the_new_one_passed() -> (
    None
):
    manifest = encoder_model(replicas=2)
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    harness = Harness(manifest)
    await harness.settle()
    first = harness.status["activeRevision"]

    def edit(live: Json) -> None:
        parity(mode="Enforce")(live)
        live["spec"]["serving"]["maxModelLen"] = 64

    harness.edit(edit)
    # neither revision is compared yet, and then only the new one fails
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
        assert harness.endpoints() == [first, first]
    harness.parity = lambda job: (
        passing_report(job) if job["metadata"]["labels"]["encoders.dev/revision"] == first else failing_report(job)
    )
    await harness.settle(30)
    assert harness.endpoints() == [first, first]
    verdicts = harness.fake.of("controllerrevisions", component="verdict")
    assert {found["metadata"]["labels"]["encoders.dev/revision"]: found["data"]["result"] for found in verdicts} == {
        first: "Passed",
        harness.status["candidateRevision"]: "Failed",
    }


async def test_the_platform_of_an_open_gate_is_recorded_on_the_pod() -> None:
    harness = gpu_model(replicas=1)
    await harness.settle()
    (pod,) = harness.fake.of("pods", component="serving")
    (found,) = [entry for entry in pod["status"]["conditions"] if entry["type"] == "encoders.dev/platform"]
    assert (found["status"], found["reason"]) == ("True", "Recorded")
    assert json.loads(found["message"]) == {"product": "NVIDIA-H200", "image": "sha256:1"}


def forget_verdicts(harness: Harness) -> None:
    for found in harness.fake.of("controllerrevisions", component="verdict"):
        harness.fake.remove("controllerrevisions", "demo", found["metadata"]["name"])
    # the finished Jobs would be taken for new reports
    for job in harness.fake.of("jobs", component="parity"):
        harness.fake.remove("jobs", "demo", job["metadata"]["name"])
