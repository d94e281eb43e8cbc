"""What becomes of an EncoderModel's volumes, on the real client and a fake API server: read, refused, grown."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator.client.errors import RequestRejected
from encoder_operator.tests.harness import PREPARED, Harness, annotate, encoder_model, passing_report


async def test_a_volumes_folder_is_read_again_only_on_request() -> None:
    manifest = encoder_model()
    manifest["spec"]["source"] = {"pvc": {"claimName": "checkpoints", "path": "search"}}
    harness = Harness(manifest)
    await harness.settle()
    (by_name,) = {job["metadata"]["name"] for job in harness.fake.of("jobs", component="prep")}
    first = harness.status["activeRevision"]
    # somebody has put another checkpoint there
    harness.prep = lambda job: (0, PREPARED | {"digest": "sha256:" + "c" * 64})
    harness.parity = lambda job: passing_report(job) | {"artifact": "sha256:" + "c" * 64}
    harness.change(maxModelLen=64)
    await harness.settle()
    assert {job["metadata"]["name"] for job in harness.fake.of("jobs", component="prep")} == {by_name}
    harness.change(maxModelLen=None)
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.status["artifact"]["digest"] == "sha256:" + "c" * 64
    assert harness.status["activeRevision"] != first
    (again,) = {job["metadata"]["name"] for job in harness.fake.of("jobs", component="prep")}
    assert again != by_name
    served, harness.reconciler = harness.serving(), harness.operator()
    harness.edit(lambda live: live["metadata"].pop("annotations"))
    await harness.settle()
    assert harness.serving() == served
    assert {job["metadata"]["name"] for job in harness.fake.of("jobs", component="prep")} == {again}


async def test_a_single_pod_pvc_is_rejected_before_anything_waits_for_it() -> None:
    manifest = encoder_model()
    manifest["spec"]["storage"] = {"claimName": "artifacts"}
    harness = Harness(manifest)
    spec = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}}
    harness.fake.put("persistentvolumeclaims", {"metadata": {"name": "artifacts", "namespace": "demo"}, "spec": spec})
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "OnePodOnly")
    assert harness.fake.of("jobs") == []


async def test_a_source_volume_is_read_only_as_a_whole_unless_the_artifacts_are_on_it_too() -> None:
    manifest = encoder_model()
    manifest["spec"]["storage"] = {"claimName": "models"}
    worlds = {}
    for claim in ("checkpoints", "models"):
        manifest["spec"]["source"] = {"pvc": {"claimName": claim, "path": "search"}}
        harness = Harness(copy.deepcopy(manifest))
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        harness.fake.put("persistentvolumeclaims", {"metadata": {"name": "models", "namespace": "demo"}, "spec": spec})
        await harness.reconcile()
        worlds[claim] = harness.fake.of("jobs", component="prep")[0]["spec"]["template"]["spec"]

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


def bound(harness: Harness, size: str) -> None:
    claim = copy.deepcopy(harness.fake.of("persistentvolumeclaims")[0])
    claim["spec"]["resources"]["requests"]["storage"] = size
    claim["status"] = {"phase": "Bound", "accessModes": ["ReadWriteMany"]}
    harness.fake.put("persistentvolumeclaims", claim)


def sized(size: str) -> Any:
    return lambda live: live["spec"]["storage"]["create"].update(size=size)


def asked(harness: Harness) -> str:
    return str(harness.fake.of("persistentvolumeclaims")[0]["spec"]["resources"]["requests"]["storage"])


async def test_a_created_pvc_grows_with_the_spec_and_never_shrinks() -> None:
    harness = Harness()
    await harness.settle()
    harness.edit(sized("2Gi"))
    await harness.settle()
    # the API server lets no claim grow that has no volume yet
    assert asked(harness) == "1Gi"
    bound(harness, "1Gi")
    pods, harness.fake.writes = harness.serving(), []
    await harness.settle()
    assert asked(harness) == "2Gi"
    assert [write for write in harness.fake.writes if "events" not in write] == [
        "PATCH persistentvolumeclaims minilm-artifacts"
    ]
    # an administrator's size, and one that takes the raise back
    bound(harness, "3072Mi")
    for size in ("3Gi", "2Gi", "500Mi"):
        harness.edit(sized(size))
        await harness.settle()
        assert asked(harness) == "3072Mi"
    assert harness.serving() == pods
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Delete", create={"size": "4Gi"}))
    await harness.settle()
    assert asked(harness) == "4Gi"
    assert harness.fake.of("persistentvolumeclaims")[0]["metadata"]["ownerReferences"]


async def test_an_edit_of_the_volume_policy_never_sends_a_smaller_size() -> None:
    harness = Harness()
    await harness.settle()
    bound(harness, "3Gi")
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    await harness.settle()
    assert asked(harness) == "3Gi"
    assert harness.fake.of("persistentvolumeclaims")[0]["metadata"]["ownerReferences"]


async def test_a_pvc_that_cannot_be_expanded_is_reported_and_blocks_nothing_else() -> None:
    harness = Harness()
    await harness.settle()
    bound(harness, "1Gi")
    harness.fake.forbidden = {"PATCH persistentvolumeclaims"}
    harness.edit(sized("2Gi"))
    harness.change(maxModelLen=64)
    for _ in range(12):
        with pytest.raises(RequestRejected, match="persistentvolumeclaims is forbidden"):
            await harness.reconcile()
        harness.jobs()
        harness.deployment()
    assert harness.condition("Degraded") == ("True", "WriteRefused")
    assert (harness.status["phase"], harness.condition("Ready")) == ("Degraded", ("True", "Ready"))
    assert set(harness.endpoints()) == {harness.status["activeRevision"]}
    assert len(harness.fake.of("controllerrevisions", component="revision")) == 2
    harness.edit(sized("1Gi"))
    await harness.settle()
    assert harness.condition("Degraded") == ("False", "AsExpected")
