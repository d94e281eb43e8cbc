"""Case 13: checkpoints of two revisions are there at once, and a model whose volume never comes is gone when it is deleted."""

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import install, manifests
from encoder_platform.kube import JOB, MODELS, POD
from encoder_platform.space import Space

NO_PODS = {"accelerator": "cpu", "replicas": 0}
CLAIM = ("v1", "PersistentVolumeClaim")


@pytest.mark.complaint(4)
@pytest.mark.complaint(5)
def test_another_revision_is_prepared_beside_the_first_and_going_back_downloads_nothing(space: Space) -> None:
    repository = f"copy-{space.name}/all-MiniLM-L6-v2"

    def source(revision: str) -> dict[str, dict[str, str]]:
        return {"huggingFace": {"repo": repository, "revision": revision, "endpoint": manifests.HUB_ENDPOINT}}

    def switched(revision: str) -> dict[str, str]:
        space.patch({"source": source(revision)})
        found: dict[str, str] = space.wait_current("ArtifactReady")["status"]["artifact"]
        assert found["resolvedRevision"] == revision
        return found

    old, new = space.platform.hub_revision, space.platform.other_revision
    space.apply_model(source=source(old), serving=NO_PODS)
    first = space.wait_current("ArtifactReady")["status"]["artifact"]
    assert first["resolvedRevision"] == old
    second = switched(new)
    assert second["key"] != first["key"]
    assert second["digest"] != first["digest"]
    listed = space.kube.run("-n", space.name, "exec", "client", "--", "ls", "/artifacts").split()
    assert {first["key"], second["key"]} <= set(listed)
    downloads = install.hub_requests(space.kube, repository)
    assert downloads, "the models came from elsewhere"
    assert switched(old) == first
    assert install.hub_requests(space.kube, repository) == downloads


@pytest.mark.complaint(6)
@pytest.mark.fault(
    "a model is deleted while its volume cannot be provisioned because the StorageClass does not exist",
    "`ClaimPending` before",
    "it is deleted with its Jobs, pods and claims, without needing the volume",
)
def test_a_model_whose_volume_never_comes_goes_when_it_is_deleted(space: Space) -> None:
    space.kube.apply(manifests.claim("never", space.name, storage_class="no-such-class"))
    space.apply_model("theirs", serving=NO_PODS, storage={"claimName": "never"})
    created = {"create": {"size": "1Gi", "storageClassName": "no-such-class"}, "policy": "Delete"}
    space.apply_model("ours", serving=NO_PODS, storage=created)
    for name in ("theirs", "ours"):
        pending = space.wait_condition("ArtifactReady", "ClaimPending", name, seconds=60)
        assert pending["message"]
    for name in ("theirs", "ours"):
        space.kube.delete(MODELS, name, space.name)

    def left() -> list[str]:
        kinds = (MODELS, JOB, POD, CLAIM)
        found = [body for kind in kinds for body in space.kube.all(kind, space.name)]
        return sorted(f"{body['kind']} {body['metadata']['name']}" for body in found)

    # what the test itself has made
    mine = ["PersistentVolumeClaim artifacts", "PersistentVolumeClaim never", "Pod client"]
    wait_for("nothing of them left", lambda: left() == mine, seconds=60)
