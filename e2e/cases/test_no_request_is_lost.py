"""Case 3: a client that posts all the time loses no request: while an update fails, passes, while it scales, and without the operator."""

import json

from encoder_platform import client, install
from encoder_platform.kube import DEPLOYMENT, Body, condition
from encoder_platform.space import Space
from encoder_platform.waiting import wait_for

OTHER_POOLING = ["--pooler-config", json.dumps({"seq_pooling_type": "CLS"})]


def template(space: Space) -> Body:
    deployment = space.kube.get(DEPLOYMENT, "minilm", space.name)
    assert deployment is not None
    found: Body = deployment["spec"]["template"]
    return found


def settled(space: Space) -> bool:
    """Whether the pods that exist are the ones that the Deployment wants, all ready."""
    pods, status = space.pods(), space.model()["status"]
    return len(pods) == status["readyReplicas"] == space.model()["spec"]["serving"]["replicas"]


def test_update_that_fails_parity_goes_back_to_the_verified_revision(served: Space) -> None:
    before, active = template(served), served.model()["status"]["activeRevision"]
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"args": OTHER_POOLING})
        served.wait_condition("UpToDate", "ParityFailed", seconds=240)
        wait_for("only the verified pods", lambda: settled(served), seconds=90)
    assert traffic.failures == []
    assert traffic.sent > 100
    assert template(served) == before
    model = served.model()
    assert model["status"]["activeRevision"] == active
    assert condition(model, "Available")["status"] == condition(model, "Verified")["status"] == "True"
    assert condition(model, "Degraded")["status"] == "True"


def test_update_that_passes_replaces_the_pods(served: Space) -> None:
    before = served.model()["status"]["activeRevision"]
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"args": [], "maxModelLen": 256})
        served.wait_ready()
        wait_for("only the new pods", lambda: settled(served), seconds=90)
    assert traffic.failures == []
    assert traffic.sent > 100
    assert served.model()["status"]["activeRevision"] != before


def test_scaling_down_loses_nothing(served: Space) -> None:
    served.patch_serving({"replicas": 2})
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=180)
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"replicas": 1})
        wait_for("one pod", lambda: len(served.pods()) == 1, seconds=120)
    assert traffic.failures == []
    assert traffic.sent > 100


def test_killed_container_comes_back_verified_while_the_operator_is_away(served: Space) -> None:
    served.patch_serving({"replicas": 2})
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=180)
    parity_jobs = len(served.jobs("parity"))
    with install.operator_stopped(served.kube):
        victim, other = served.pods()
        container = victim["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        with client.traffic(served.kube, served.name, served.url()) as traffic:
            served.platform.cluster.run(["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])
            wait_for("the container restarted and its pod ready", lambda: restarted(served, victim), seconds=180)
        # only the killed pod's requests may fail: those it held, and those sent before the Service let go of it
        times = [failure["at"] for failure in traffic.failures]
        assert not times or max(times) - min(times) < 10
        assert len(times) < traffic.sent / 4
        survivor = next(p for p in served.pods() if p["metadata"]["uid"] == other["metadata"]["uid"])
        assert survivor["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len(served.jobs("parity")) == parity_jobs
    assert served.wait_current("Ready")["status"]["parity"]["result"] == "Passed"


def restarted(space: Space, victim: Body) -> bool:
    pod = next((p for p in space.pods() if p["metadata"]["uid"] == victim["metadata"]["uid"]), None)
    return (
        pod is not None
        and pod["status"]["containerStatuses"][0]["restartCount"] == 1
        and condition(pod, "Ready").get("status") == "True"
    )
