"""Case 10: what befalls a prep pod is a reason or is overcome, and there is never a second Job."""

from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import install, manifests
from encoder_platform.kube import JOB, MODELS, condition, made
from encoder_platform.space import Space

NO_PODS = {"accelerator": "cpu", "replicas": 0}
# of the weights, which trickle from their middle on
HALF = 45_000_000
VOLUME = ("v1", "PersistentVolume")


def trickling(space: Space, model: str) -> str:
    """A repository of the model's own whose downloads last until it is healed."""
    return f"slow-{space.name}-{model}/all-MiniLM-L6-v2"


def source(space: Space, repository: str) -> dict[str, object]:
    return {
        "huggingFace": {"repo": repository, "revision": space.revision, "endpoint": manifests.HUB_ENDPOINT},
    }


@pytest.fixture
def folder(space: Space) -> Iterator[str]:
    """A folder of the node for a volume."""
    path, run = f"/run/{space.name}-enormous", space.platform.cluster.run
    run(["mkdir", "-m", "1777", path])
    yield path
    space.kube.delete(VOLUME, f"{space.name}-enormous")
    run(["rm", "-rf", path])


@pytest.mark.complaint(6)
@pytest.mark.fault(
    "the prep pod is evicted (`kubectl drain`)",
    "`Preparing`",
    "the same Job creates another pod, which resumes the download; an eviction is not a failed attempt",
)
@pytest.mark.fault(
    "the prep pod exceeds its memory limit",
    "`OutOfMemory`, with `spec.prepare.resources`",
    "a spec with more memory starts another attempt; nothing of the first one is left",
)
@pytest.mark.fault(
    "no volume can satisfy the PersistentVolumeClaim",
    "`ClaimPending` with the scheduler's message",
    "the same Job continues automatically when there is a volume",
)
def test_pods_that_are_evicted_killed_or_nowhere_to_run(space: Space, folder: str) -> None:
    slow, enormous = trickling(space, "evicted"), f"{space.name}-enormous"
    little = {"requests": {"memory": "32Mi"}, "limits": {"memory": "32Mi"}}
    with (
        space.kube.watching(JOB, space.name, "encoders.dev/component=prep") as jobs,
        space.kube.watching(MODELS, space.name) as states,
    ):
        space.apply_model("evicted", source=source(space, slow), serving=NO_PODS, prepare={"backoffLimit": 0})
        space.apply_model("greedy", serving=NO_PODS, prepare={"backoffLimit": 0, "resources": little})
        space.kube.apply(manifests.claim("enormous", space.name, size="9Ti", storage_class=enormous))
        space.apply_model("homeless", serving=NO_PODS, storage={"claimName": "enormous"}, prepare={"backoffLimit": 0})
        pending = space.wait_condition("ArtifactReady", "ClaimPending", "homeless", seconds=60)
        assert "PersistentVolumeClaim" in pending["message"]
        node = space.kube.all(("v1", "Node"), "")[0]["metadata"]["name"]
        space.kube.apply(manifests.local_volume(enormous, node, folder, size="9Ti"))

        first = wait_for("a running prep pod", lambda: running(space, "evicted"), seconds=180)
        wait_for("half of it downloaded", lambda: install.hub_sent(space.kube, slow) > HALF, seconds=180)
        space.evict(first)
        second = wait_for("another prep pod", lambda: running(space, "evicted", besides=first), seconds=180)
        space.evict(second)
        wait_for("a third prep pod", lambda: running(space, "evicted", besides=second), seconds=180)
        assert condition(space.model("evicted"), "ArtifactReady")["reason"] == "Preparing"
        install.hub_heal(space.kube, slow)

        killed = space.wait_condition("ArtifactReady", "OutOfMemory", "greedy")
        assert "spec.prepare.resources" in killed["message"]
        space.patch({"prepare": {"backoffLimit": 1, "resources": None}}, "greedy")
        for name in ("evicted", "greedy", "homeless"):
            space.wait_current("ArtifactReady", name)
    ever = {name: len(made(jobs, f"encoders.dev/model={name}")) for name in ("evicted", "greedy", "homeless")}
    assert ever == {"evicted": 1, "greedy": 2, "homeless": 1}
    assert len(space.jobs("prep", "greedy")) == 1
    reported = [condition(state, "ArtifactReady") for state in states if state["metadata"]["name"] == "evicted"]
    assert {found["reason"] for found in reported if found} == {"Preparing", "Prepared"}
    assert not [found for found in reported if "failed" in found.get("message", "")]
    # what was on its way to a pod as it was ended comes again, and no more
    assert install.hub_sent(space.kube, slow) < 1.1 * space.model("evicted")["status"]["artifact"]["bytes"]


@pytest.mark.fault(
    "the prep pod exceeds its limit of the node's disk (`ephemeral-storage`)",
    "`Evicted` with the kubelet's message",
    "a failed attempt: the same Job creates another pod, which resumes the download, until the last attempt",
)
@pytest.mark.soak
def test_a_pod_that_takes_too_much_of_the_nodes_disk(space: Space) -> None:
    """The kubelet measures volumes once in a minute."""
    slow = trickling(space, "crowded")
    limits = {"limits": {"ephemeral-storage": "32Mi"}}
    space.apply_model(
        "crowded", source=source(space, slow), serving=NO_PODS, prepare={"backoffLimit": 1, "resources": limits}
    )
    first = wait_for("a running prep pod", lambda: running(space, "crowded"), seconds=180)
    wait_for("half of it downloaded", lambda: install.hub_sent(space.kube, slow) > HALF, seconds=180)
    fill = "open('/tmp/more', 'wb').write(bytes(64 << 20))"
    space.kube.run("-n", space.name, "exec", first, "--", "python", "-c", fill)
    evicted = space.wait_condition("ArtifactReady", "Evicted", "crowded", seconds=240)
    assert evicted["message"].startswith(f"Attempt 1 of 2 failed and will be retried: Pod {first} was evicted")
    assert "ephemeral" in evicted["message"]
    install.hub_heal(space.kube, slow)
    model = space.wait_current("ArtifactReady", "crowded", seconds=180)
    (job,) = space.jobs("prep", "crowded")
    assert job["status"]["failed"] == 1
    assert install.hub_sent(space.kube, slow) < 1.1 * model["status"]["artifact"]["bytes"]


def running(space: Space, model: str, *, besides: str = "") -> str | None:
    """The name of the model's prep pod that runs."""
    for pod in space.pods(model, "prep"):
        name: str = pod["metadata"]["name"]
        deleting = pod["metadata"].get("deletionTimestamp")
        if pod["status"].get("phase") == "Running" and not deleting and name != besides:
            return name
    return None
