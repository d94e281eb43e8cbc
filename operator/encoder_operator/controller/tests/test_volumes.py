"""What becomes of an EncoderModel's volumes, on the real client and a fake API server: read, refused, grown."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator.client.errors import RequestRejected
from encoder_operator.tests.world import PREPARED, World, annotate, model, passes


async def test_a_volumes_folder_is_read_again_when_a_person_asks_and_not_before() -> None:
    manifest = model()
    manifest["spec"]["source"] = {"pvc": {"claimName": "checkpoints", "path": "search"}}
    world = World(manifest)
    await world.settle()
    (by_name,) = {job["metadata"]["name"] for job in world.fake.of("jobs", component="prep")}
    first = world.status["activeRevision"]
    # somebody has put another checkpoint there
    world.prep = lambda job: (0, PREPARED | {"digest": "sha256:" + "c" * 64})
    world.parity = lambda job: passes(job) | {"artifact": "sha256:" + "c" * 64}
    world.change(maxModelLen=64)
    await world.settle()
    assert {job["metadata"]["name"] for job in world.fake.of("jobs", component="prep")} == {by_name}
    world.change(maxModelLen=None)
    world.edit(annotate(retry="1"))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.status["artifact"]["digest"] == "sha256:" + "c" * 64
    assert world.status["activeRevision"] != first
    (again,) = {job["metadata"]["name"] for job in world.fake.of("jobs", component="prep")}
    assert again != by_name
    served, world.reconciler = world.serving(), world.operator()
    world.edit(lambda live: live["metadata"].pop("annotations"))
    await world.settle()
    assert world.serving() == served
    assert {job["metadata"]["name"] for job in world.fake.of("jobs", component="prep")} == {again}


async def test_a_claim_for_one_pod_alone_is_refused_before_anything_waits_for_it() -> None:
    manifest = model()
    manifest["spec"]["storage"] = {"claimName": "artifacts"}
    world = World(manifest)
    spec = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}}
    world.fake.put("persistentvolumeclaims", {"metadata": {"name": "artifacts", "namespace": "demo"}, "spec": spec})
    await world.settle()
    assert world.condition("Accepted") == ("False", "OnePodOnly")
    assert world.fake.of("jobs") == []


async def test_a_source_volume_is_read_only_as_a_whole_unless_the_artifacts_are_on_it_too() -> None:
    manifest = model()
    manifest["spec"]["storage"] = {"claimName": "models"}
    worlds = {}
    for claim in ("checkpoints", "models"):
        manifest["spec"]["source"] = {"pvc": {"claimName": claim}}
        world = World(copy.deepcopy(manifest))
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        world.fake.put("persistentvolumeclaims", {"metadata": {"name": "models", "namespace": "demo"}, "spec": spec})
        await world.look()
        worlds[claim] = world.fake.of("jobs", component="prep")[0]["spec"]["template"]["spec"]

    def claims(pod: dict[str, Any]) -> dict[str, Any]:
        return {v["name"]: v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v}

    def mounts(pod: dict[str, Any]) -> dict[str, Any]:
        return {m["mountPath"]: (m["name"], m.get("readOnly", False)) for m in pod["containers"][0]["volumeMounts"]}

    assert claims(worlds["checkpoints"]) == {
        "artifacts": {"claimName": "models"},
        "source": {"claimName": "checkpoints", "readOnly": True},
    }
    assert mounts(worlds["checkpoints"])["/source"] == ("source", True)
    # a pod has a claim once: a second, read-only volume of it would make the first one read-only too
    assert claims(worlds["models"]) == {"artifacts": {"claimName": "models"}}
    assert (
        mounts(worlds["models"]).items() >= {"/source": ("artifacts", True), "/artifacts": ("artifacts", False)}.items()
    )


def bound(world: World, size: str) -> None:
    claim = copy.deepcopy(world.fake.of("persistentvolumeclaims")[0])
    claim["spec"]["resources"]["requests"]["storage"] = size
    claim["status"] = {"phase": "Bound", "accessModes": ["ReadWriteMany"]}
    world.fake.put("persistentvolumeclaims", claim)


def sized(size: str) -> Any:
    return lambda live: live["spec"]["storage"]["create"].update(size=size)


def asked(world: World) -> str:
    return str(world.fake.of("persistentvolumeclaims")[0]["spec"]["resources"]["requests"]["storage"])


async def test_a_created_claim_grows_with_the_spec_and_never_shrinks() -> None:
    world = World()
    await world.settle()
    world.edit(sized("2Gi"))
    await world.settle()
    # the API server lets no claim grow that has no volume yet
    assert asked(world) == "1Gi"
    bound(world, "1Gi")
    pods, world.fake.writes = world.serving(), []
    await world.settle()
    assert asked(world) == "2Gi"
    assert [write for write in world.fake.writes if "events" not in write] == [
        "PATCH persistentvolumeclaims minilm-artifacts"
    ]
    # an administrator's size, and one that takes the raise back
    bound(world, "3072Mi")
    for size in ("3Gi", "2Gi", "500Mi"):
        world.edit(sized(size))
        await world.settle()
        assert asked(world) == "3072Mi"
    assert world.serving() == pods
    world.edit(lambda live: live["spec"]["storage"].update(policy="Delete", create={"size": "4Gi"}))
    await world.settle()
    assert asked(world) == "4Gi"
    assert world.fake.of("persistentvolumeclaims")[0]["metadata"]["ownerReferences"]


async def test_a_claim_that_may_not_grow_says_so_and_keeps_nothing_else_waiting() -> None:
    world = World()
    await world.settle()
    bound(world, "1Gi")
    world.fake.forbidden = {"PATCH persistentvolumeclaims"}
    world.edit(sized("2Gi"))
    world.change(maxModelLen=64)
    for _ in range(12):
        with pytest.raises(RequestRejected, match="persistentvolumeclaims is forbidden"):
            await world.look()
        world.jobs()
        world.deployment()
    assert world.condition("Degraded") == ("True", "WriteRefused")
    assert world.condition("Ready") == ("True", "Ready")
    assert set(world.endpoints()) == {world.status["activeRevision"]}
    assert len(world.fake.of("controllerrevisions", component="revision")) == 2
    world.edit(sized("1Gi"))
    await world.settle()
    assert world.condition("Degraded") == ("False", "AsExpected")
