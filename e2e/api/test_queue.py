"""The example of Kueue on docs/integrations.md: its objects are ones that Kueue knows, and a queue that admits late is waited for.

What Kueue's webhook and controller do to a Job is done here by an admission policy and by hand: the Job is created suspended, and resumed with the
node selector of a flavor.
"""

import json
import re
from functools import partial

import yaml

from encoder_node import module_sources
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform.kube import JOB, Body
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.pages import ROOT
from encoder_platform.plane import established
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

SECTION = (ROOT / "docs" / "integrations.md").read_text().partition("\n## Kueue\n")[2].partition("\n## ")[0]
EXAMPLES: dict[str, Body] = {
    body["kind"]: body
    for text in re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    for body in yaml.safe_load_all(text)
}
MODEL = EXAMPLES.pop("EncoderModel")
QUEUE = MODEL["metadata"]["labels"][naming.QUEUE]
FLAVOR = {"pool": "cpu"}
POLICY = "suspends-queued-jobs"
ADMISSION = "admissionregistration.k8s.io/v1"


def suspend_queued_jobs() -> list[Body]:
    """Return what does to a Job of a queue what Kueue's webhook does."""
    jobs = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    queued = f"has(object.metadata.labels) && '{naming.QUEUE}' in object.metadata.labels"
    change = {"expression": "Object{spec: Object.spec{suspend: true}}"}
    spec = {
        "matchConstraints": {"resourceRules": [jobs]},
        "matchConditions": [{"name": "queued", "expression": queued}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": change}],
    }
    names = {"apiVersion": ADMISSION, "metadata": {"name": POLICY}}
    return [
        {**names, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**names, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": POLICY}},
    ]


def test_the_examples_are_ones_that_kueue_knows(scene: Scene) -> None:
    kube, folder = scene.kube, module_sources.folder(module_sources.KUEUE) / "config" / "components" / "crd" / "bases"
    assert set(EXAMPLES) == {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    for kind in EXAMPLES:
        plural = f"{kind.lower()}s"
        kube.run("apply", "--server-side", "-f", str(folder / f"kueue.x-k8s.io_{plural}.yaml"))
        wait_for(f"the API of {plural}", partial(established, kube, f"{plural}.kueue.x-k8s.io"), seconds=90)
    for body in EXAMPLES.values():
        if "namespace" in body["metadata"]:
            body = {**body, "metadata": {**body["metadata"], "namespace": scene.name}}
        kube.run("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(body))
    assert EXAMPLES["LocalQueue"]["metadata"]["name"] == QUEUE
    assert EXAMPLES["LocalQueue"]["metadata"]["namespace"] == MODEL["metadata"]["namespace"]


def test_preparation_waits_for_a_queue_and_goes_on_where_it_was_admitted(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    kube, policy = scene.kube, suspend_queued_jobs()
    kube.apply(*policy)

    def in_effect() -> bool:
        body = {
            "apiVersion": JOB[0],
            "kind": JOB[1],
            "metadata": {"name": "probe", "namespace": scene.name, "labels": {naming.QUEUE: QUEUE}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}},
        }
        dry_run = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        return bool(json.loads(kube.run(*dry_run, stdin=json.dumps(body)))["spec"].get("suspend"))

    try:
        wait_for("the policy in effect", in_effect, seconds=60)
        kube.apply({**MODEL, "metadata": {**MODEL["metadata"], "namespace": scene.name}})
        found = scene.wait_condition("ArtifactReady", "Queued", seconds=60)
        (job,) = scene.jobs("prep")
        assert found["message"] == f"Job {job['metadata']['name']} is suspended and waits for queue {QUEUE} to admit it"
        assert scene.pods(component="prep") == []
        # a flavor has labels of nodes
        admitted = {"suspend": False, "template": {"spec": {"nodeSelector": FLAVOR}}}
        kube.patch(JOB, job["metadata"]["name"], scene.name, {"spec": admitted})
        scene.wait_current("Ready", seconds=120)
    finally:
        for body in policy:
            kube.delete((body["apiVersion"], body["kind"]), POLICY)
    (after,) = scene.jobs("prep")
    assert after["metadata"]["uid"] == job["metadata"]["uid"]
    (prep,) = scene.pods(component="prep")
    assert prep["spec"]["nodeSelector"] == FLAVOR
    # each pod is counted once: by its Job, or by itself
    assert naming.QUEUE not in prep["metadata"]["labels"]
    assert [pod["metadata"]["labels"][naming.QUEUE] for pod in scene.pods()] == [QUEUE]
    # an unverified pod that waits for the queue's quota could hold the model up
    assert [naming.QUEUE in parity["metadata"]["labels"] for parity in scene.jobs("parity")] == [False]
