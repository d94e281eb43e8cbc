"""What earlier versions of the operator left in a cluster is taken up as it is: no pod changes, nothing is proved or prepared again.

`earlier/<version>-<case>.yaml` was written by that version's own code, so it stays as it is whatever the operator becomes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_operator import naming
from encoder_operator.manager.settings import Images
from encoder_operator.tests import fake_cluster
from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import PLUGIN, SETTINGS, Harness, controller

# a newer prep version is another default, which test_revision compares
pytestmark = pytest.mark.usefixtures("first_prep_versions")

LEFT = sorted((Path(__file__).parent / "earlier").glob("*.yaml"))
# what a version may make that an earlier one did not know, and what it says
MAY_WRITE = {"PATCH poddisruptionbudgets minilm", "PATCH encodermodels/status minilm"}
NEWER = SETTINGS.model_copy(
    update={
        "images": Images(
            operator="encoder-operator/operator:9.0.0",
            engine={
                "cpu": {PLUGIN: "encoder-operator/engine-sentence_transformer:9.0.0-cpu"},
                "nvidia": {PLUGIN: "encoder-operator/engine-sentence_transformer:9.0.0-cuda"},
            },
            prep={PLUGIN: "encoder-operator/prep-sentence_transformer:9.0.0"},
        )
    }
)


def taken_up(file: Path) -> Harness:
    """Return a cluster with what is in the file, as the API server keeps it."""
    harness = Harness()
    harness.fake.objects.clear()
    objects: list[Json] = yaml.safe_load(file.read_text())
    template = next(live["spec"]["template"] for live in objects if live["kind"] == "Deployment")
    for found in objects:
        live = copy.deepcopy(found)
        if live["kind"] == "Pod":
            # a controller has made it
            spec = template["spec"] if live["metadata"]["labels"]["encoders.dev/component"] == "serving" else {}
            live["spec"] = {"nodeName": "node", **copy.deepcopy(spec)}
            (owner,) = live["metadata"]["ownerReferences"]
            owner["controller"] = True
            if owner["kind"] == "ReplicaSet":
                # the file names the Deployment as its owner
                deployment = next(entry for entry in objects if entry["kind"] == "Deployment")
                name = f"minilm-{live['metadata']['labels']['encoders.dev/revision']}"
                metadata = {"name": name, "namespace": "demo", "labels": live["metadata"]["labels"]}
                metadata |= {"uid": f"{name}-rs", "ownerReferences": [controller("Deployment", deployment)]}
                harness.fake.put("replicasets", {"metadata": metadata})
                owner["uid"] = metadata["uid"]
        elif live["kind"] != "EncoderModel":
            live = applied(live)
        harness.fake.put(_PLURALS[live["kind"]], live)
    harness.fake.writes.clear()
    return harness


def applied(live: Json) -> Json:
    """Return the object with its fields owned by who applied them."""
    ours = {key: value for key, value in live.items() if key != "status"}
    of_the_server = ("uid", "creationTimestamp", "generation")
    ours["metadata"] = {key: value for key, value in live["metadata"].items() if key not in of_the_server}
    managed = fake_cluster._applied(None, ours)["metadata"]["managedFields"]
    return {**live, "metadata": {**live["metadata"], "managedFields": managed}}


_PLURALS = {
    "EncoderModel": "encodermodels",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Job": "jobs",
    "Pod": "pods",
    "ControllerRevision": "controllerrevisions",
    "Service": "services",
    "Deployment": "deployments",
}


def kept(harness: Harness) -> Any:
    """Return what only the user may change. Labels of ControllerRevisions and messages and times of gates may be of the current version."""
    kinds = ("pods", "jobs", "deployments", "services", "persistentvolumeclaims")
    records = {live["metadata"]["name"]: live["data"] for live in harness.fake.of("controllerrevisions")}
    found = copy.deepcopy((records, {kind: harness.fake.of(kind) for kind in kinds}))
    for pod in found[1]["pods"]:
        pod["metadata"].pop("resourceVersion", None)
        conditions = pod["status"].get("conditions", [])
        # recorded by the current version
        conditions[:] = [condition for condition in conditions if condition["type"] != naming.PLATFORM]
        for condition in conditions:
            if condition["type"] == naming.GATE:
                condition.pop("message", None)
                # version 0.1.0 wrote none
                condition.pop("lastTransitionTime", None)
    return found


@pytest.mark.complaint(9)
@pytest.mark.parametrize("settings", [SETTINGS, NEWER], ids=["same-images", "newer-images"])
@pytest.mark.parametrize("file", LEFT, ids=lambda file: file.stem)
@pytest.mark.parametrize("wiped", [False, True], ids=["with-status", "status-wiped"])
async def test_what_an_earlier_version_left_is_not_touched(file: Path, settings: Any, wiped: bool) -> None:
    harness = taken_up(file)
    harness.operator_settings = settings
    before, said = kept(harness), copy.deepcopy(harness.status)
    if wiped:
        del harness.live["status"]
    for _ in range(12):
        # the controllers and the kubelet have nothing to do either
        harness.reconciler = harness.operator()
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
    written = [write for write in harness.fake.writes if not write.startswith("POST events")]
    records = {f"PATCH controllerrevisions {name}" for name in before[0]}
    # a new version may word the message of a gate differently
    messages = {f"PATCH pods/status {pod['metadata']['name']}" for pod in before[1]["pods"]}
    assert set(written) <= MAY_WRITE | records | messages
    # once, and then it is said
    assert len(written) == len(set(written))
    assert kept(harness) == before
    for name in ("phase", "activeRevision", "candidateRevision", "artifact", "readyReplicas"):
        assert harness.status.get(name) == said.get(name), name
    assert harness.status["parity"]["result"] == "Passed"
    expected = {entry["type"]: entry["reason"] for entry in said["conditions"]}
    if settings is NEWER:
        expected["UpdateAvailable"] = "NewDefaults"
    assert {entry["type"]: entry["reason"] for entry in harness.status["conditions"]} == expected


@pytest.mark.parametrize("file", LEFT, ids=lambda file: file.stem)
async def test_an_edit_of_what_an_earlier_version_left_is_a_rollout_like_any_other(file: Path) -> None:
    harness = taken_up(file)
    harness.operator_settings = NEWER
    harness.reconciler = harness.operator()
    await harness.reconcile()
    first = harness.status["activeRevision"]
    preps = {job["metadata"]["uid"] for job in harness.fake.of("jobs", component="prep")}
    harness.change(maxModelLen=128)
    await harness.reconcile()
    # what serves goes on until the new one is proved
    assert set(harness.endpoints()) == {first}
    await harness.settle(40)
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.status["activeRevision"] != first
    container = harness.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]
    assert ":9.0.0-" in container["image"]
    # the artifact is the same, so nothing is prepared again
    assert {job["metadata"]["uid"] for job in harness.fake.of("jobs", component="prep")} == preps
