"""Objects that carry the labels of a child and were not created for the EncoderModel: the operator ignores them.

The test creates them as a member of system:masters, whom no admission policy stops: what the operator accepts must not rest on the
policies alone.
"""

import json
from collections.abc import Callable

import pytest

from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform import manifests
from encoder_platform.kube import JOB, POD, REVISION, Body, condition, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import Ended, StandIn, never, verdict

MODEL = "minilm"


def reference(live: Body, *, controller: bool = False) -> Body:
    found = {"apiVersion": live["apiVersion"], "kind": live["kind"], "name": live["metadata"]["name"]}
    return found | {"uid": live["metadata"]["uid"], "controller": controller, "blockOwnerDeletion": False}


def pod(scene: Scene, name: str, like: Body, owners: list[Body]) -> Body:
    """Return a pod with the labels and the container of another one."""
    spec = {field: like["spec"][field] for field in ("containers", "securityContext", "volumes")}
    labels = {key: value for key, value in like["metadata"]["labels"].items() if key.startswith(naming.GROUP)}
    metadata = {"name": name, "namespace": scene.name, "labels": labels, "ownerReferences": owners}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "restartPolicy": "Never"}}


def bare_pod(scene: Scene, parity: Body, comparing: Body) -> str:
    """A pod that names the real parity Job as an owner, not as its controller."""
    scene.kube.apply(pod(scene, "forged", comparing, [reference(parity)]))
    return "forged"


def job_of_a_cron_job(scene: Scene, parity: Body, comparing: Body) -> str:
    """A Job that the CronJob controller creates with the labels and annotations of `jobTemplate`."""
    meta = parity["metadata"]
    ours = {
        kind: {key: value for key, value in meta[kind].items() if key.startswith(naming.GROUP)}
        for kind in ("labels", "annotations")
    }
    template = {
        "metadata": {"labels": ours["labels"]},
        "spec": pod(scene, "x", comparing, [])["spec"],
    }
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "forged", "namespace": scene.name},
        "spec": {
            "schedule": "* * * * *",
            "suspend": True,
            "jobTemplate": {"metadata": ours, "spec": {"template": template}},
        },
    }
    scene.kube.apply(cron)
    live = scene.kube.get(("batch/v1", "CronJob"), "forged", scene.name)
    assert live is not None
    # what the CronJob controller creates at the next minute
    metadata = {
        "name": "forged",
        "namespace": scene.name,
        **ours,
        "ownerReferences": [reference(live, controller=True)],
    }
    scene.kube.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})
    found: str = wait_for(
        "a pod of the Job",
        lambda: next(
            (p["metadata"]["name"] for p in scene.pods(component="parity") if "forged" in p["metadata"]["name"]), None
        ),
        seconds=90,
    )
    return found


@pytest.mark.parametrize("forge", [bare_pod, job_of_a_cron_job], ids=lambda found: found.__name__)
def test_a_verdict_of_a_pod_that_is_not_the_parity_jobs_own_is_ignored(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess, forge: Callable[[Scene, Body, Body], str]
) -> None:
    real: set[str] = set()

    def parity(found: Body) -> Ended | None:
        return never(found) if found["metadata"]["uid"] in real or not real else verdict(found)

    stand_in.parity = parity
    scene.apply_model(rollout={"minReadySeconds": 0})
    comparing = wait_for("a parity pod", lambda: next(iter(scene.pods(component="parity")), None), seconds=60)
    (job,) = scene.jobs("parity")
    real.add(comparing["metadata"]["uid"])
    forged = forge(scene, {**job, "apiVersion": "batch/v1", "kind": "Job"}, comparing)
    wait_for("the forged report", lambda: ended(scene, forged), seconds=90)
    reconciled(scene)
    live = scene.model()
    assert condition(live, "Verified")["reason"] == "ParityRunning", condition(live, "Verified")
    assert scene.kube.all(REVISION, scene.name, "encoders.dev/component=verdict") == []
    assert not [found for found in scene.pods() if is_true(found, naming.GATE)]


def ended(scene: Scene, name: str) -> bool:
    found = scene.kube.get(POD, name, scene.name)
    return found is not None and found.get("status", {}).get("phase") == "Succeeded"


def reconciled(scene: Scene) -> None:
    """Wait until the operator has seen everything that is in the cluster now."""
    scene.patch({"rollout": {"progressDeadlineSeconds": 601}})
    generation = scene.model()["metadata"]["generation"]
    wait_for(
        "a reconcile of the newest generation",
        lambda: scene.model().get("status", {}).get("observedGeneration") == generation,
        seconds=60,
    )


def test_a_pod_that_no_replica_set_of_the_model_controls_is_neither_compared_nor_opened(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    (serving,) = scene.pods()
    forged = pod(scene, "forged", serving, [])
    forged["spec"]["readinessGates"] = serving["spec"]["readinessGates"]
    scene.kube.apply(forged)
    wait_for(
        "its containers ready",
        lambda: is_true(scene.kube.get(POD, "forged", scene.name), "ContainersReady"),
        seconds=90,
    )
    reconciled(scene)
    scene.wait_current("Ready", seconds=60)
    assert not is_true(scene.kube.get(POD, "forged", scene.name), naming.GATE)
    assert scene.model()["status"]["replicas"] == 1


def test_records_that_another_controller_made_are_ignored(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.parity = never
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_condition("Verified", "ParityRunning", seconds=60)
    (revision,) = scene.kube.all(REVISION, scene.name, "encoders.dev/component=revision")
    (serving,) = scene.pods()
    which = revision["metadata"]["labels"][naming.REVISION]
    # the StatefulSet controller gives its ControllerRevisions the labels of the pod template
    labels = naming.labels(MODEL, "verdict", which)
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "securityContext": manifests.RESTRICTED,
            "containers": [{"name": "c", "image": "c:1", "securityContext": manifests.LOCKED_CONTAINER}],
        },
    }
    spec = {"replicas": 0, "serviceName": "x", "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "forged", "namespace": scene.name}
    scene.kube.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec})
    owned = wait_for(
        "the StatefulSet's ControllerRevision",
        lambda: scene.kube.all(REVISION, scene.name, "encoders.dev/component=verdict"),
        seconds=90,
    )
    assert owned[0]["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    # and one with the right content
    container = serving["status"]["containerStatuses"][0]
    binding = {"uid": serving["metadata"]["uid"], "imageID": container["imageID"], "product": "cpu", "revision": which}
    data: Body = {
        "result": "Passed",
        "product": "cpu",
        "thresholds": job_thresholds(scene),
        "retry": "",
        "binding": binding,
    }
    data |= {"metrics": [], "cases": 1, "ranAt": "2026-01-01T00:00:00Z"}
    owner = reference({**scene.model(), "apiVersion": "encoders.dev/v1alpha1", "kind": "EncoderModel"})
    meta: Body = {"name": "passed", "namespace": scene.name, "labels": labels, "ownerReferences": [owner]}
    scene.kube.apply(
        {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta, "revision": 0, "data": data}
    )
    reconciled(scene)
    assert condition(scene.model(), "Verified")["reason"] == "ParityRunning"
    assert [line for line in operator.lines() if "mistake" in str(line) or "Unexpected" in str(line)] == []
    assert not [found for found in scene.pods() if is_true(found, naming.GATE)]


def job_thresholds(scene: Scene) -> str:
    (job,) = scene.jobs("parity")
    return str(job["metadata"]["annotations"][naming.THRESHOLDS])


def test_a_job_that_has_the_name_of_the_next_comparison_is_not_taken_over(
    scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    stopped_operator.start()
    stopped_operator.wait_ready()
    stand_in.parity = never
    scene.apply_model(rollout={"minReadySeconds": 0})
    wait_for("a comparison", lambda: scene.jobs("parity"), seconds=60)
    (job,) = scene.jobs("parity")
    stopped_operator.kill()
    name = job["metadata"]["name"]
    scene.kube.delete(JOB, name, scene.name)
    wait_for("the Job gone", lambda: scene.kube.get(JOB, name, scene.name) is None, seconds=90)
    # the same Job as a tenant makes it, without any label of ours, and with what makes the comparison say what it likes
    template = json.loads(json.dumps(job["spec"]["template"]))
    template["metadata"] = {}
    template["spec"]["containers"][0]["env"].append({"name": "PYTHONPATH", "value": "/tmp/forged"})
    spec = {"suspend": True, "backoffLimit": 0, "template": template}
    metadata = {"name": name, "namespace": scene.name}
    scene.kube.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    stopped_operator.restart()
    refused = scene.wait_condition("Degraded", "WriteRefused", seconds=60)
    assert f"Job {name}" in refused["message"]
    found = scene.kube.get(JOB, name, scene.name)
    assert found is not None
    assert not found["metadata"].get("labels", {}).get(naming.MODEL)
    assert not found["metadata"].get("ownerReferences")
    # the name is free again
    scene.kube.delete(JOB, name, scene.name)
    stand_in.parity = verdict
    scene.wait_current("Ready", seconds=60)
