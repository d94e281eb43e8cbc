"""Case 3: a client that posts all the time loses no request: while an update fails, passes, while it scales, and without the operator."""

import json
import time

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import client, install
from encoder_platform.kube import DEPLOYMENT, POD, REVISION, Body, condition
from encoder_platform.scene import ENGINE_SECONDS
from encoder_platform.space import Space

# requests without which nothing is shown; on a busy machine there are not many more
ENOUGH = 30
OTHER_POOLING = ["--pooler-config", json.dumps({"seq_pooling_type": "CLS"})]


def template(space: Space) -> Body:
    deployment = space.kube.get(DEPLOYMENT, "minilm", space.name)
    assert deployment is not None
    found: Body = deployment["spec"]["template"]
    return found


def settled(space: Space) -> bool:
    """Whether the pods that exist are the ones that the Deployment wants, all ready."""
    pods, status = space.pods(), space.model()["status"]
    return bool(len(pods) == status["readyReplicas"] == space.model()["spec"]["serving"]["replicas"])


@pytest.mark.complaint(19)
@pytest.mark.complaint(11)
@pytest.mark.fault(
    "the output of an update differs from the reference outputs",
    "`ParityFailed` with the numbers; `Degraded`; `Available` stays True",
    "the verified revision's template is restored byte for byte; no request is lost",
)
def test_update_that_fails_parity_goes_back_to_the_verified_revision(served: Space) -> None:
    before, active = template(served), served.model()["status"]["activeRevision"]
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"args": OTHER_POOLING})
        served.wait_condition("UpToDate", "ParityFailed", seconds=ENGINE_SECONDS)
        wait_for("only the verified pods", lambda: settled(served), seconds=150)
    assert traffic.failures == []
    assert traffic.sent > ENOUGH
    assert template(served) == before
    model = served.model()
    assert model["status"]["activeRevision"] == active
    assert condition(model, "Available")["status"] == condition(model, "Verified")["status"] == "True"
    assert condition(model, "Degraded")["status"] == "True"
    # the spec is that of the verified revision again, for the tests behind this one
    served.patch_serving({"args": None})
    served.wait_ready(seconds=60)


def staying(space: Space) -> list[Body]:
    """The pods that nobody has deleted."""
    return [pod for pod in space.pods() if not pod["metadata"].get("deletionTimestamp")]


def revisions(objects: list[Body]) -> set[str]:
    """The revisions that objects of a model belong to."""
    return {found["metadata"]["labels"]["encoders.dev/revision"] for found in objects}


@pytest.mark.soak
@pytest.mark.complaint(13)
@pytest.mark.fault(
    "twenty edits within two seconds",
    "`RolloutInProgress`",
    "a single rollout of the last edit; serving pods are not touched, no request is lost",
)
def test_many_edits_are_one_rollout_of_the_last(served: Space) -> None:
    before = served.model()["status"]["activeRevision"]
    serving = "encoders.dev/component=serving"
    with (
        client.traffic(served.kube, served.name, served.url()) as traffic,
        served.kube.watching(POD, served.name, serving) as pods,
    ):
        for number in range(20):
            served.patch_serving({"maxModelLen": 237 + number})
            time.sleep(0.05)
        served.wait_ready()
        wait_for("only the new pods", lambda: settled(served), seconds=150)
    assert traffic.failures == []
    assert traffic.sent > ENOUGH
    model = served.model()
    active, labels = model["status"]["activeRevision"], "encoders.dev/model=minilm,encoders.dev/component"
    record = served.kube.get(REVISION, f"minilm-{active}", served.name)
    assert record is not None
    arguments = record["data"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-model-len") + 1] == "256"
    assert revisions([p for p in pods if condition(p, "ContainersReady").get("status") == "True"]) == {before, active}
    assert revisions(served.jobs("parity")) >= {before, active}
    assert len(served.kube.all(REVISION, served.name, f"{labels}=revision")) < 12, "the history is not bounded"


@pytest.mark.complaint(12)
@pytest.mark.fault(
    "an edit is reverted while its pod is still starting",
    "`RolloutInProgress`, then `Current`",
    "serving pods are never touched; the candidate is removed",
)
def test_taken_back_in_the_middle_nothing_has_happened(served: Space) -> None:
    uids, jobs = {pod["metadata"]["uid"] for pod in staying(served)}, len(served.jobs("parity"))
    before = served.model()["spec"]["serving"].get("maxModelLen")
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"maxModelLen": 128})
        wait_for("a candidate", lambda: len(staying(served)) == len(uids) + 1, seconds=60)
        # the pod may be there before the status that shows it
        assert served.wait_condition("UpToDate", "RolloutInProgress", seconds=30)["status"] == "False"
        served.patch_serving({"maxModelLen": before})
        served.wait_ready(seconds=60)
        wait_for(
            "the candidate is being deleted",
            lambda: {p["metadata"]["uid"] for p in staying(served)} == uids,
            seconds=60,
        )
    assert traffic.failures == []
    assert len(served.jobs("parity")) == jobs


@pytest.mark.soak
@pytest.mark.fault(
    "an update to an image that cannot be pulled",
    "`ImagePullFailed` with the kubelet's message, then `ProgressDeadlineExceeded`",
    "the candidate is given up after `rollout.progressDeadlineSeconds`; `encoders.dev/retry` starts it again; no request is lost",
)
def test_a_candidate_that_never_starts_is_given_up(served: Space) -> None:
    before, uids = template(served), {pod["metadata"]["uid"] for pod in staying(served)}
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch({"image": "nowhere.invalid/engine:1", "rollout": {"progressDeadlineSeconds": 60}})
        pulling = served.wait_condition("Progressing", "ImagePullFailed", seconds=60)
        assert "nowhere.invalid" in pulling["message"]
        given_up = served.wait_condition("UpToDate", "ProgressDeadlineExceeded", seconds=150)
        assert "60 s" in given_up["message"]
        wait_for("only the former pods", lambda: {p["metadata"]["uid"] for p in staying(served)} == uids, seconds=60)
        model = served.model()
        assert condition(model, "Degraded")["status"] == condition(model, "Available")["status"] == "True"
        assert template(served) == before

        served.kube.run("-n", served.name, "annotate", "em", "minilm", "encoders.dev/retry=once")
        wait_for("the candidate again", lambda: len(staying(served)) == len(uids) + 1, seconds=60)
        served.patch({"image": None, "rollout": None})
        served.wait_ready(seconds=60)
        wait_for("only the former pods", lambda: {p["metadata"]["uid"] for p in staying(served)} == uids, seconds=60)
    assert traffic.failures == []


@pytest.mark.alone
@pytest.mark.fault(
    "an engine is killed with SIGKILL while the operator is not running",
    "a restarted container",
    "it becomes ready again without a new parity check; only requests of the killed pod fail",
)
def test_killed_container_comes_back_verified_while_the_operator_is_away(served: Space) -> None:
    served.patch_serving({"replicas": 2})
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=ENGINE_SECONDS)
    parity_jobs = len(served.jobs("parity"))
    with install.operator_stopped(served.kube):
        victim, other = served.pods()
        container = victim["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        with client.traffic(served.kube, served.name, served.url()) as traffic:
            served.platform.cluster.run(["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])
            wait_for(
                "the container restarted and its pod ready", lambda: restarted(served, victim), seconds=ENGINE_SECONDS
            )
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


def test_more_pods_need_no_second_verdict_and_scaling_down_loses_nothing(served: Space) -> None:
    verdict, parity_jobs = served.model()["status"]["parity"], {job["metadata"]["uid"] for job in served.jobs("parity")}
    # two pods, as the test before this one has left them
    served.kube.run("-n", served.name, "scale", "em/minilm", "--replicas=2")
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=ENGINE_SECONDS)
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        served.patch_serving({"replicas": 1})
        wait_for("one pod", lambda: len(served.pods()) == 1, seconds=120)
    assert traffic.failures == []
    assert traffic.sent > ENOUGH
    assert {job["metadata"]["uid"] for job in served.jobs("parity")} <= parity_jobs
    assert served.wait_current("Ready")["status"]["parity"] == verdict
