"""Where products can't be told apart, or pods come to a place where nothing was compared yet: each proves itself, and no other waits."""

from __future__ import annotations

import copy

import pytest

from encoder_operator.controller.tests.test_rollouts import spec
from encoder_operator.tests.cluster_fake import Json
from encoder_operator.tests.world import SETTINGS, World, annotate, fails, model, passes, report


async def test_in_namespaces_each_pod_proves_itself() -> None:
    world = namespaced(model(accelerator="nvidia", replicas=3))
    await world.settle()
    assert world.status["readyReplicas"] == 3
    assert len(world.fake.of("jobs", component="parity")) == 3
    products = {found["data"]["product"] for found in world.fake.of("controllerrevisions", component="verdict")}
    assert products == {f"pod:{uid}" for uid in world.serving()}
    # one pod in four computes something else: it is no endpoint, and says so
    right = world.serving()
    world.parity = fails
    world.change(replicas=4)
    await world.settle()
    assert len(world.endpoints()) == 3
    assert world.condition("Degraded") == ("True", "ParityFailed")
    assert world.condition("Available") == ("True", "Serving")
    # a person takes it away, and the next one is right
    world.parity = passes
    wrong = next(p for p in world.fake.of("pods", component="serving") if p["metadata"]["uid"] not in right)
    world.fake.remove("pods", "demo", wrong["metadata"]["name"])
    await world.settle()
    assert len(world.endpoints()) == 4
    assert world.condition("Degraded") == ("False", "AsExpected")


async def test_verdicts_of_pods_that_are_gone_do_not_pile_up() -> None:
    world = namespaced(model(accelerator="nvidia"))
    await world.settle()
    for _ in range(5):
        pod = world.fake.of("pods", component="serving")[0]
        world.fake.remove("pods", "demo", pod["metadata"]["name"])
        await world.settle()
        assert world.condition("Ready") == ("True", "Ready")
    assert len(world.fake.of("controllerrevisions", component="verdict")) == 1
    # with no pod left the proof of the revision is still there
    world.change(replicas=0)
    await world.settle()
    assert len(world.fake.of("controllerrevisions", component="verdict")) == 1


async def test_a_pinned_product_is_proved_once_also_in_namespaces() -> None:
    world = namespaced(model(accelerator="nvidia", replicas=3, acceleratorProduct="NVIDIA-H200"))
    await world.settle()
    assert world.status["readyReplicas"] == 3
    assert len(world.fake.of("jobs", component="parity")) == 1


@pytest.mark.fault(
    "`acceleratorProduct` is set or changed on a model that serves, in namespaces",
    "`ParityRunning`, then `Ready`",
    "what serves was compared as what it is, and serves on until the new pods are proved",
)
@pytest.mark.parametrize(("before", "after"), [(None, "NVIDIA-L4"), ("NVIDIA-H200", "NVIDIA-L4"), ("NVIDIA-L4", None)])
async def test_pinning_a_product_closes_no_gate(before: str | None, after: str | None) -> None:
    world = namespaced(model(accelerator="nvidia", replicas=2, acceleratorProduct=before))
    await world.settle()
    first, pods = world.status["activeRevision"], world.serving()
    world.parity = fails
    world.change(acceleratorProduct=after)
    for _ in range(12):
        await world.look()
        world.jobs()
        world.deployment()
        assert world.endpoints() == [first, first]
    assert world.serving() == pods
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    world.parity = passes
    world.edit(annotate(retry="1"))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    products = {found["data"]["product"] for found in world.fake.of("controllerrevisions", component="verdict")}
    assert after in products if after else {f"pod:{uid}" for uid in world.serving()} <= products


async def test_a_pod_that_was_compared_by_itself_stays_known_by_itself() -> None:
    """As version 0.1.0 left it, to which a product in the node selector said nothing."""
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    world = namespaced(model(accelerator="nvidia", nodeSelector=product))
    await world.settle()
    (pod,), (found,) = world.serving(), world.fake.of("controllerrevisions", component="verdict")
    found["data"]["product"] = found["data"]["binding"]["product"] = f"pod:{pod}"
    world.fake.writes.clear()
    for _ in range(3):
        await world.look()
        world.deployment()
        assert len(world.endpoints()) == 1
    assert not [write for write in world.fake.writes if "jobs" in write]


@pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
async def test_pods_that_come_back_after_a_failed_update_prove_themselves(strategy: str) -> None:
    world = namespaced(model(accelerator="nvidia"))
    world.edit(spec(rollout={"strategy": strategy}))
    await world.settle()
    first = world.status["activeRevision"]
    world.parity = lambda job: (fails if of(job) != first else passes)(job)
    world.change(maxModelLen=64)
    await world.settle(30)
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    assert world.condition("Available") == ("True", "Serving")
    assert world.endpoints() == [first]
    # a drain: the next one is compared too, again and again if need be
    lose(world)
    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await world.settle()
    assert world.endpoints() == []
    assert world.condition("Progressing") == ("True", "Inconclusive")
    assert "connection refused" in world.said("Available")
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    assert 0 < (await world.look() or 0) <= 5
    long_ago(world)
    world.parity = passes
    await world.settle()
    assert world.endpoints() == [first]
    assert world.condition("Progressing") == ("False", "ParityFailed")
    assert world.condition("UpToDate") == ("False", "ParityFailed")


@pytest.mark.parametrize("works", [True, False])
async def test_pods_that_come_while_another_checkpoint_is_prepared_prove_themselves(works: bool) -> None:
    world = namespaced(model(accelerator="nvidia"))
    await world.settle()
    first = world.status["activeRevision"]
    world.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    world.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    await world.settle()
    assert world.condition("UpToDate") == ("False", "InsufficientSpace")
    if not works:
        world.parity = fails
    lose(world)
    await world.settle()
    assert world.endpoints() == ([first] if works else [])
    assert world.condition("Available")[0] == str(works)
    assert world.condition("Degraded") == ("True", "InsufficientSpace" if works else "ParityFailed")
    # a verdict on one pod is none on the revision: it stays what there is to serve
    assert world.fake.of("deployments")[0]["spec"]["replicas"] == 1
    assert world.fake.of("deployments")[0]["spec"]["template"]["metadata"]["labels"]["encoders.dev/revision"] == first


async def test_an_old_pod_that_comes_again_during_an_update_proves_itself_beside_the_candidate() -> None:
    world = namespaced(model(accelerator="nvidia"))
    await world.settle()
    first = world.status["activeRevision"]
    template = copy.deepcopy(world.fake.of("deployments")[0]["spec"]["template"])
    # the candidate's pod finds no GPU
    world.starts = lambda pod: pod["spec"].pop("nodeName") and pod["status"].update(unscheduled())
    world.change(maxModelLen=64)
    await world.look()
    world.deployment()
    lose(world, first)
    world.starts = lambda pod: None
    # the former ReplicaSet brings its pod back
    world.start_pod(template)
    for _ in range(4):
        await world.look()
        world.jobs()
        for pod in world.fake.of("pods", component="serving"):
            world._kubelet(pod)
    assert world.endpoints() == [first]
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("UpToDate")[0] == "False"


async def test_a_pod_that_can_not_be_asked_keeps_no_other_waiting() -> None:
    world = namespaced(model(accelerator="nvidia"))
    await world.settle()
    known, silent = world.serving(), set[str]()

    def compare(job: Json) -> Json:
        uid = report(job, "Passed", "1")["binding"]["uid"]
        silent.add(uid) if not silent else None
        return {"result": "Inconclusive", "message": "connection refused"} if uid in silent else passes(job)

    world.parity = compare
    world.change(replicas=4)
    await world.settle()
    assert len(silent) == 1
    assert {pod["metadata"]["uid"] for pod in ready(world)} == world.serving() - silent
    assert len(ready(world)) == 3
    assert known <= world.serving()


async def test_a_job_without_its_annotations_keeps_its_name_from_being_used_twice() -> None:
    world = namespaced(model(accelerator="nvidia"))
    await world.settle()
    for job in world.fake.of("jobs"):
        del job["metadata"]["annotations"]
    world.change(replicas=2)
    await world.settle()
    assert len(ready(world)) == 2
    assert [job["metadata"]["name"][-1] for job in world.fake.of("jobs", component="parity")] == ["1", "2"]


async def test_a_comparison_on_a_volume_of_one_node_goes_where_the_former_pod_is() -> None:
    old = {"nodeSelector": {"pool": "old"}, "tolerations": [{"key": "old", "operator": "Exists"}]}
    world = namespaced(model(accelerator="nvidia", **old))
    for name in ("one", "other"):
        meta = {"name": name, "namespace": "demo"}
        world.fake.put("persistentvolumeclaims", {"metadata": meta, "spec": {"accessModes": ["ReadWriteOnce"]}})
    world.edit(lambda live: live["spec"].update(storage={"claimName": "one"}))
    await world.settle()
    (serving,) = world.fake.of("pods", component="serving")
    world.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})

    def move(live: Json) -> None:
        live["spec"]["storage"] = {"claimName": "other"}
        live["spec"]["serving"].update(nodeSelector={"pool": "new"}, tolerations=[])

    world.edit(move)
    lose(world)
    await world.settle()
    assert len(world.endpoints()) == 1
    assert world.condition("UpToDate") == ("False", "InsufficientSpace")
    last = world.fake.of("jobs", component="parity")[-1]["spec"]["template"]
    assert (last["spec"]["nodeSelector"], last["spec"]["tolerations"][0]["key"]) == ({"pool": "old"}, "old")
    claim = "encoders.dev/claim"
    assert last["metadata"]["labels"][claim] == serving["metadata"]["labels"][claim]


def ready(world: World) -> list[Json]:
    """Return the pods that get traffic."""
    return [
        pod
        for pod in world.fake.of("pods", component="serving")
        if {"type": "Ready", "status": "True"} in pod["status"]["conditions"]
    ]


def namespaced(manifest: Json) -> World:
    """Return a world whose operator reads no Nodes."""
    world = World(manifest)
    world.operator_settings = SETTINGS.model_copy(update={"namespaces": ["demo"]})
    world.reconciler = world.operator()
    return world


def long_ago(world: World) -> None:
    """Let all comparisons have ended long ago."""
    for job in world.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"


def of(job: Json) -> str:
    """Return the revision that a Job compares."""
    return str(job["metadata"]["labels"]["encoders.dev/revision"])


def lose(world: World, revision: str = "") -> None:
    """Take the serving pods of a revision, or all, away as a drain does."""
    for pod in world.fake.of("pods", component="serving"):
        if revision in ("", pod["metadata"]["labels"]["encoders.dev/revision"]):
            world.fake.remove("pods", "demo", pod["metadata"]["name"])


def unscheduled() -> Json:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    return {
        "phase": "Pending",
        "conditions": [condition, {"type": "Ready", "status": "False"}],
        "containerStatuses": [],
    }
