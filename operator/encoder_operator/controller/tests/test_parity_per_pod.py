"""Where products can't be told apart, or pods come to a place where nothing was compared yet: each proves itself, and no other waits."""

from __future__ import annotations

import copy

import pytest

from encoder_operator.controller.tests.test_rollouts import spec
from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import (
    SETTINGS,
    Harness,
    annotate,
    encoder_model,
    failing_report,
    passing_report,
    report,
)


async def test_in_namespaced_mode_each_pod_is_verified() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia", replicas=3))
    await harness.settle()
    assert harness.status["readyReplicas"] == 3
    assert len(harness.fake.of("jobs", component="parity")) == 3
    products = {found["data"]["product"] for found in harness.fake.of("controllerrevisions", component="verdict")}
    assert products == {f"pod:{uid}" for uid in harness.serving()}
    # one pod in four computes something else: it is no endpoint, and says so
    right = harness.serving()
    harness.parity = failing_report
    harness.change(replicas=4)
    await harness.settle()
    assert len(harness.endpoints()) == 3
    assert harness.condition("Degraded") == ("True", "ParityFailed")
    assert harness.condition("Available") == ("True", "Serving")
    # a person takes it away, and the next one is right
    harness.parity = passing_report
    wrong = next(p for p in harness.fake.of("pods", component="serving") if p["metadata"]["uid"] not in right)
    harness.fake.remove("pods", "demo", wrong["metadata"]["name"])
    await harness.settle()
    assert len(harness.endpoints()) == 4
    assert harness.condition("Degraded") == ("False", "AsExpected")


async def test_verdicts_of_pods_that_are_gone_do_not_pile_up() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    await harness.settle()
    for _ in range(5):
        pod = harness.fake.of("pods", component="serving")[0]
        harness.fake.remove("pods", "demo", pod["metadata"]["name"])
        await harness.settle()
        assert harness.condition("Ready") == ("True", "Ready")
    assert len(harness.fake.of("controllerrevisions", component="verdict")) == 1
    # with no pod left the proof of the revision is still there
    harness.change(replicas=0)
    await harness.settle()
    assert len(harness.fake.of("controllerrevisions", component="verdict")) == 1


async def test_a_pinned_product_is_verified_once_also_in_namespaced_mode() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia", replicas=3, acceleratorProduct="NVIDIA-H200"))
    await harness.settle()
    assert harness.status["readyReplicas"] == 3
    assert len(harness.fake.of("jobs", component="parity")) == 1


@pytest.mark.fault(
    "`acceleratorProduct` is set or changed on a serving model in namespaced mode",
    "`ParityRunning`, then `Ready`",
    "serving pods stay verified and keep serving until the new pods are verified",
)
@pytest.mark.parametrize(("before", "after"), [(None, "NVIDIA-L4"), ("NVIDIA-H200", "NVIDIA-L4"), ("NVIDIA-L4", None)])
async def test_pinning_a_product_closes_no_gate(before: str | None, after: str | None) -> None:
    harness = namespaced(encoder_model(accelerator="nvidia", replicas=2, acceleratorProduct=before))
    await harness.settle()
    first, pods = harness.status["activeRevision"], harness.serving()
    harness.parity = failing_report
    harness.change(acceleratorProduct=after)
    for _ in range(12):
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
        assert harness.endpoints() == [first, first]
    assert harness.serving() == pods
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    harness.parity = passing_report
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    products = {found["data"]["product"] for found in harness.fake.of("controllerrevisions", component="verdict")}
    assert after in products if after else {f"pod:{uid}" for uid in harness.serving()} <= products


async def test_a_pod_that_was_compared_by_itself_stays_known_by_itself() -> None:
    """As version 0.1.0 left it, to which a product in the node selector said nothing."""
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    harness = namespaced(encoder_model(accelerator="nvidia", nodeSelector=product))
    await harness.settle()
    (pod,), (found,) = harness.serving(), harness.fake.of("controllerrevisions", component="verdict")
    found["data"]["product"] = found["data"]["binding"]["product"] = f"pod:{pod}"
    harness.fake.writes.clear()
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
        assert len(harness.endpoints()) == 1
    assert not [write for write in harness.fake.writes if "jobs" in write]


@pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
async def test_pods_that_come_back_after_a_failed_update_prove_themselves(strategy: str) -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    harness.edit(spec(rollout={"strategy": strategy}))
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.parity = lambda job: (failing_report if of(job) != first else passing_report)(job)
    harness.change(maxModelLen=64)
    await harness.settle(30)
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.endpoints() == [first]
    # a drain: the next one is compared too, again and again if need be
    lose(harness)
    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await harness.settle()
    assert harness.endpoints() == []
    assert harness.condition("Progressing") == ("True", "Inconclusive")
    assert "connection refused" in harness.message("Available")
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    assert 0 < (await harness.reconcile() or 0) <= 5
    long_ago(harness)
    harness.parity = passing_report
    await harness.settle()
    assert harness.endpoints() == [first]
    assert harness.condition("Progressing") == ("False", "ParityFailed")
    assert harness.condition("UpToDate") == ("False", "ParityFailed")


@pytest.mark.parametrize("works", [True, False])
async def test_pods_that_come_while_another_checkpoint_is_prepared_prove_themselves(works: bool) -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    harness.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    await harness.settle()
    assert harness.condition("UpToDate") == ("False", "InsufficientSpace")
    if not works:
        harness.parity = failing_report
    lose(harness)
    await harness.settle()
    assert harness.endpoints() == ([first] if works else [])
    assert harness.condition("Available")[0] == str(works)
    assert harness.condition("Degraded") == ("True", "InsufficientSpace" if works else "ParityFailed")
    # a verdict on one pod is none on the revision: it stays what there is to serve
    assert harness.fake.of("deployments")[0]["spec"]["replicas"] == 1
    assert harness.fake.of("deployments")[0]["spec"]["template"]["metadata"]["labels"]["encoders.dev/revision"] == first


async def test_a_replaced_pod_of_the_old_revision_is_verified_beside_the_candidate() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    await harness.settle()
    first = harness.status["activeRevision"]
    template = copy.deepcopy(harness.fake.of("deployments")[0]["spec"]["template"])
    # the candidate's pod finds no GPU
    harness.starts = lambda pod: pod["spec"].pop("nodeName") and pod["status"].update(unscheduled())
    harness.change(maxModelLen=64)
    await harness.reconcile()
    harness.deployment()
    lose(harness, first)
    harness.starts = lambda pod: None
    # the former ReplicaSet brings its pod back
    harness.start_pod(template)
    for _ in range(4):
        await harness.reconcile()
        harness.jobs()
        for pod in harness.fake.of("pods", component="serving"):
            harness._kubelet(pod)
    assert harness.endpoints() == [first]
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("UpToDate")[0] == "False"


async def test_an_unreachable_pod_does_not_block_other_parity_checks() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    await harness.settle()
    known, silent = harness.serving(), set[str]()

    def compare(job: Json) -> Json:
        uid = report(job, "Passed", "1")["binding"]["uid"]
        silent.add(uid) if not silent else None
        return {"result": "Inconclusive", "message": "connection refused"} if uid in silent else passing_report(job)

    harness.parity = compare
    harness.change(replicas=4)
    await harness.settle()
    assert len(silent) == 1
    assert {pod["metadata"]["uid"] for pod in ready(harness)} == harness.serving() - silent
    assert len(ready(harness)) == 3
    assert known <= harness.serving()


async def test_a_job_without_its_annotations_keeps_its_name_from_being_used_twice() -> None:
    harness = namespaced(encoder_model(accelerator="nvidia"))
    await harness.settle()
    for job in harness.fake.of("jobs"):
        del job["metadata"]["annotations"]
    harness.change(replicas=2)
    await harness.settle()
    assert len(ready(harness)) == 2
    assert [job["metadata"]["name"][-1] for job in harness.fake.of("jobs", component="parity")] == ["1", "2"]


async def test_a_comparison_on_a_volume_of_one_node_goes_where_the_former_pod_is() -> None:
    old = {"nodeSelector": {"pool": "old"}, "tolerations": [{"key": "old", "operator": "Exists"}]}
    harness = namespaced(encoder_model(accelerator="nvidia", **old))
    for name in ("one", "other"):
        meta = {"name": name, "namespace": "demo"}
        harness.fake.put("persistentvolumeclaims", {"metadata": meta, "spec": {"accessModes": ["ReadWriteOnce"]}})
    harness.edit(lambda live: live["spec"].update(storage={"claimName": "one"}))
    await harness.settle()
    (serving,) = harness.fake.of("pods", component="serving")
    harness.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})

    def move(live: Json) -> None:
        live["spec"]["storage"] = {"claimName": "other"}
        live["spec"]["serving"].update(nodeSelector={"pool": "new"}, tolerations=[])

    harness.edit(move)
    lose(harness)
    await harness.settle()
    assert len(harness.endpoints()) == 1
    assert harness.condition("UpToDate") == ("False", "InsufficientSpace")
    last = harness.fake.of("jobs", component="parity")[-1]["spec"]["template"]
    assert (last["spec"]["nodeSelector"], last["spec"]["tolerations"][0]["key"]) == ({"pool": "old"}, "old")
    claim = "encoders.dev/claim"
    assert last["metadata"]["labels"][claim] == serving["metadata"]["labels"][claim]


def ready(harness: Harness) -> list[Json]:
    """Return the pods that get traffic."""
    return [
        pod
        for pod in harness.fake.of("pods", component="serving")
        if {"type": "Ready", "status": "True"} in pod["status"]["conditions"]
    ]


def namespaced(manifest: Json) -> Harness:
    """Return a world whose operator reads no Nodes."""
    harness = Harness(manifest)
    harness.operator_settings = SETTINGS.model_copy(update={"namespaces": ["demo"]})
    harness.reconciler = harness.operator()
    return harness


def long_ago(harness: Harness) -> None:
    """Let all comparisons have ended long ago."""
    for job in harness.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"


def of(job: Json) -> str:
    """Return the revision that a Job compares."""
    return str(job["metadata"]["labels"]["encoders.dev/revision"])


def lose(harness: Harness, revision: str = "") -> None:
    """Take the serving pods of a revision, or all, away as a drain does."""
    for pod in harness.fake.of("pods", component="serving"):
        if revision in ("", pod["metadata"]["labels"]["encoders.dev/revision"]):
            harness.fake.remove("pods", "demo", pod["metadata"]["name"])


def unscheduled() -> Json:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    return {
        "phase": "Pending",
        "conditions": [condition, {"type": "Ready", "status": "False"}],
        "containerStatuses": [],
    }
