"""Case 6: more pods of a verified revision need no second verdict; deleting leaves the artifact and nothing else."""

from functools import partial

from encoder_node.waiting import wait_for
from encoder_platform import install
from encoder_platform.kube import JOB, MODELS
from encoder_platform.space import Space

POLICY, BUDGET = ("networking.k8s.io/v1", "NetworkPolicy"), ("policy/v1", "PodDisruptionBudget")
OWNED = (
    JOB,
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "ControllerRevision"),
    ("v1", "Service"),
    ("v1", "Pod"),
    POLICY,
    BUDGET,
)


def test_scale_to_two_and_back_then_delete_and_apply_again(space: Space) -> None:
    # enforced on some clusters only; the client that waits for the way to the model is among those who may
    space.apply_model(network={"networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}})
    space.wait_ready()
    assert [p["metadata"]["name"] for p in space.kube.all(POLICY, space.name)] == ["minilm"]
    verdict = space.model()["status"]["parity"]
    jobs = {job["metadata"]["uid"] for job in space.jobs("parity")}

    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=2")
    wait_for("two ready pods", lambda: space.model()["status"].get("readyReplicas") == 2, seconds=300)
    wait_for("a budget for two", lambda: len(space.kube.all(BUDGET, space.name)) == 1, seconds=30)
    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=1")
    wait_for("one pod", lambda: len(space.pods()) == 1, seconds=120)
    assert {job["metadata"]["uid"] for job in space.jobs("parity")} <= jobs
    assert space.wait_current("Ready")["status"]["parity"] == verdict

    downloads = install.hub_requests(space.kube)
    space.kube.delete(MODELS, "minilm", space.name)
    for kind in OWNED:
        wait_for(
            f"no {kind[1]} left",
            partial(lambda kind: not space.kube.all(kind, space.name, "encoders.dev/model=minilm"), kind),
            seconds=90,
        )
    space.apply_model(serving={"accelerator": "cpu", "replicas": 0})
    space.wait_current("ArtifactReady", seconds=60)
    assert install.hub_requests(space.kube) == downloads, "the artifact was downloaded again"
