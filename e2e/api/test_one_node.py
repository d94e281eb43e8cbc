"""ReadWriteOnce on a real scheduler: whatever uses the volume goes where the volume is, also another model's pods."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encoder_node.waiting import wait_for
from encoder_operator.cli import render
from encoder_operator.tests.harness import SETTINGS
from encoder_platform.kube import POD, Body, Kube, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import CLAIM, CLASS, StandIn, Unschedulable

NODES = ("rack-1", "rack-2", "rack-3")
ONE_NODE = render.ClusterFacts(one_node=True)


@pytest.fixture
def scheduler(plane: Plane, kube: Kube, tmp_path: Path) -> Iterator[None]:
    """Kubernetes' own scheduler, and three nodes that it may choose from."""
    for name in NODES:
        StandIn(kube).add_node(name, {"kubernetes.io/hostname": name})
        # there is no controller here that sees that a node has become ready
        kube.run("taint", "nodes", name, "node.kubernetes.io/not-ready-")
    command = [str(plane.control.bin_dir / "kube-scheduler"), f"--kubeconfig={kube.kubeconfig}"]
    options = ["--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0"]
    with (tmp_path / "scheduler.log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            for name in NODES:
                kube.delete(("v1", "Node"), name)


def model(scene: Scene, name: str, storage: Body) -> list[Body]:
    source = {"huggingFace": {"repo": "a/b", "revision": "1" * 40}}
    serving: Body = {"accelerator": "cpu", "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}
    live: Body = {
        "metadata": {"name": name, "namespace": scene.name},
        "spec": {"plugin": "sentence_transformer", "source": source, "storage": storage, "serving": serving},
    }
    found: list[Body] = render.render_children(live, SETTINGS, ONE_NODE)
    return found


def pod(scene: Scene, name: str, children: list[Body], kind: str) -> str:
    """Make the pod that a Job or Deployment would make, and return the node that it is put on."""
    template: Any = next(child["spec"]["template"] for child in children if child["kind"] == kind)
    metadata = {"name": name, "namespace": scene.name, "labels": template["metadata"]["labels"]}
    scene.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

    def node() -> str | None:
        found = scene.kube.get(POD, name, scene.name)
        return found["spec"].get("nodeName") if found else None

    placed: str = wait_for(f"a node for {name}", node, seconds=60)
    return placed


def bind(scene: Scene, claim: str) -> None:
    """Give a claim a volume that any one node can mount."""
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nowhere"},
        "storageClassName": CLASS,
        "claimRef": {"namespace": scene.name, "name": claim},
    }
    metadata = {"name": f"{scene.name}-{claim}"}
    scene.kube.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})

    def phase() -> bool:
        found = scene.kube.get(CLAIM, claim, scene.name)
        return found is not None and found.get("status", {}).get("phase") == "Bound"

    wait_for(f"{claim} bound", phase, seconds=60)


@pytest.mark.usefixtures("scheduler")
def test_pods_of_two_models_with_one_pvc_share_its_node(scene: Scene) -> None:
    bind(scene, "artifacts")
    one, two = (model(scene, name, {"claimName": "artifacts"}) for name in ("one", "two"))
    made = [
        pod(scene, "one-prep", one, "Job"),
        pod(scene, "one-serving", one, "Deployment"),
        pod(scene, "two-prep", two, "Job"),
        pod(scene, "two-serving", two, "Deployment"),
        pod(scene, "one-surge", one, "Deployment"),
    ]
    assert len(set(made)) == 1
    assert made[0] in NODES


@pytest.mark.usefixtures("scheduler")
def test_pods_of_a_model_share_the_node_of_its_created_pvc(scene: Scene) -> None:
    own = model(scene, "own", {"create": {"size": "1Gi"}})
    claim = next(child for child in own if child["kind"] == "PersistentVolumeClaim")
    scene.kube.apply(claim)
    bind(scene, "own-artifacts")
    made = [pod(scene, "serving", own, "Deployment"), pod(scene, "prep", own, "Job")]
    made.append(pod(scene, "surge", own, "Deployment"))
    assert len(set(made)) == 1
    assert made[0] in NODES


def test_a_drain_of_the_node_of_the_volume_is_not_blocked(
    scene: Scene, kube: Kube, scheduler: None, operator: OperatorProcess
) -> None:
    stand_in = StandIn(kube)
    # the real scheduler places them
    stand_in.place = lambda pod: Unschedulable("left to the scheduler")
    with stand_in.running():
        scene.apply_model(serving={"replicas": 2}, rollout={"minReadySeconds": 0})
        wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=60)
        (node,) = {found["spec"]["nodeName"] for found in ready(scene)}
        options = ("--pod-selector=encoders.dev/model", "--delete-emptydir-data", "--timeout=30s")
        try:
            kube.run("drain", node, *options, seconds=60)
            assert [found for found in scene.pods() if found["spec"].get("nodeName") == node] == []
        finally:
            kube.run("uncordon", node)
        wait_for("two pods again", lambda: len(ready(scene)) == 2, seconds=60)
        assert len({found["spec"]["nodeName"] for found in ready(scene)}) == 1


def ready(scene: Scene) -> list[Body]:
    return [found for found in scene.pods() if is_true(found, "Ready")]
