"""Case 10: what befalls a prep pod is a reason or is overcome, and there is never a second Job."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import POD, condition
from encoder_platform.space import Space

NO_PODS = {"accelerator": "cpu", "replicas": 0}


def source(space: Space, organisation: str) -> dict[str, object]:
    return {
        "huggingFace": {
            "repo": f"{organisation}/all-MiniLM-L6-v2",
            "revision": space.revision,
            "endpoint": manifests.HUB_ENDPOINT,
        }
    }


def evict(space: Space, pod: str) -> None:
    """Through the eviction API, as `kubectl drain` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space.name}}
    path = f"/api/v1/namespaces/{space.name}/pods/{pod}/eviction"
    space.kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


@pytest.mark.complaint(6)
@pytest.mark.fault(
    "the prep pod evicted (`kubectl drain`)",
    "`Preparing`",
    "the same Job makes another pod, which goes on with what was downloaded; an eviction is no failed try",
)
@pytest.mark.fault(
    "the prep pod killed for memory",
    "`OutOfMemory`, naming `spec.prepare.resources`",
    "a spec with more memory is another try; nothing is left of the first",
)
@pytest.mark.fault(
    "a claim that no volume can satisfy",
    "`ClaimPending` in the words of the scheduler",
    "goes on by itself when there is a volume",
)
def test_pods_that_are_evicted_killed_or_nowhere_to_run(space: Space) -> None:
    # stalled for five seconds at a time: there is time to evict it
    space.apply_model("evicted", source=source(space, "stall-evicted"), serving=NO_PODS, prepare={"backoffLimit": 0})
    little = {"requests": {"memory": "32Mi"}, "limits": {"memory": "32Mi"}}
    space.apply_model("greedy", serving=NO_PODS, prepare={"backoffLimit": 0, "resources": little})
    space.kube.apply(manifests.claim("enormous", space.name, size="9Ti"))
    space.apply_model("homeless", serving=NO_PODS, storage={"claimName": "enormous"})

    first = wait_for("a prep pod at work", lambda: running(space, "evicted"), seconds=60)
    evict(space, first)
    second = wait_for("another prep pod", lambda: running(space, "evicted", besides=first), seconds=90)
    assert second != first
    evict(space, second)
    wait_for("a third prep pod", lambda: running(space, "evicted", besides=second), seconds=90)
    assert condition(space.model("evicted"), "ArtifactReady")["reason"] in ("Preparing", "Stalled")
    # the same repository without the fault; a new spec is a new Job
    space.patch({"source": source(space, "demo")}, "evicted")
    space.wait_current("ArtifactReady", "evicted", seconds=180)

    killed = space.wait_condition("ArtifactReady", "OutOfMemory", "greedy", seconds=120)
    assert "spec.prepare.resources" in killed["message"]
    pending = space.wait_condition("ArtifactReady", "ClaimPending", "homeless", seconds=60)
    assert pending["message"]
    for name in ("evicted", "greedy", "homeless"):
        assert len(space.jobs("prep", name)) == 1, name
    space.patch({"prepare": {"backoffLimit": 1, "resources": None}}, "greedy")
    space.wait_current("ArtifactReady", "greedy", seconds=180)
    assert len(space.jobs("prep", "greedy")) == 1


def running(space: Space, model: str, *, besides: str = "") -> str | None:
    """The name of the model's prep pod that runs."""
    for pod in space.kube.all(POD, space.name, f"encoders.dev/model={model},encoders.dev/component=prep"):
        name: str = pod["metadata"]["name"]
        deleting = pod["metadata"].get("deletionTimestamp")
        if pod["status"].get("phase") == "Running" and not deleting and name != besides:
            return name
    return None
