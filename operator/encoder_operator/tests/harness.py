"""The rest of a cluster, for tests: a kubelet and controllers that do one step when told to, on a ClusterFake."""

from __future__ import annotations

import copy
import json
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from encoder_operator.client.client import Client
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.manager.settings import Images, Settings
from encoder_operator.state.desired import EncoderModel, parse_model
from encoder_operator.state.observed import format_time
from encoder_operator.status import conditions
from encoder_operator.status.reasons import Reason
from encoder_operator.tests.fake_cluster import FakeCluster, Json

PLUGIN = "sentence_transformer"
SETTINGS = Settings(
    images=Images(
        operator="encoder-operator/operator:0.1.0",
        engine={
            "cpu": {PLUGIN: "encoder-operator/engine-sentence_transformer:0.1.0-cpu"},
            "nvidia": {PLUGIN: "encoder-operator/engine-sentence_transformer:0.1.0-cuda"},
        },
        prep={PLUGIN: "encoder-operator/prep-sentence_transformer:0.1.0"},
    )
)
ARTIFACT = "sha256:" + "a" * 64
REFERENCE = "sha256:" + "b" * 64
PREPARED = {
    "code": "Prepared",
    "digest": ARTIFACT,
    "reference": REFERENCE,
    "revision": "1" * 40,
    "bytes": 91_000_000,
    "files": 9,
    "cases": 48,
}


def encoder_model(**serving: Any) -> Json:
    """Return an EncoderModel's manifest."""
    return {
        "apiVersion": "encoders.dev/v1alpha1",
        "kind": "EncoderModel",
        "metadata": {"name": "minilm", "namespace": "demo"},
        "spec": {
            "plugin": PLUGIN,
            "source": {"huggingFace": {"repo": "sentence-transformers/all-MiniLM-L6-v2", "revision": "1" * 40}},
            "storage": {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}, "policy": "Retain"},
            "serving": {"accelerator": "cpu", "replicas": 1, **serving},
        },
    }


def with_fields(changes: dict[str, Any]) -> Json:
    """Return an EncoderModel's manifest with some fields set, each named by its path: ``{"spec.serving.dtype": "bfloat16"}``."""
    live = encoder_model()
    live["metadata"]["uid"] = "u"
    for path, value in changes.items():
        *folders, name = path.split(".")
        target: Json = live
        for folder in folders:
            target = target.setdefault(folder, {})
        target[name] = value
    return live


def parsed_model(changes: dict[str, Any] | None = None, settings: Settings = SETTINGS) -> EncoderModel:
    """Return an EncoderModel as the operator works with it."""
    return parse_model(with_fields(changes or {}), settings)


def existing_pvc() -> Json:
    """Return a claim as the API server has it."""
    return {"metadata": {"name": "minilm-artifacts"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}


def annotate(**changes: str) -> Callable[[Json], None]:
    """Return an edit that sets annotations of ours: ``annotate(retry="1")``."""
    named = {f"encoders.dev/{key}": value for key, value in changes.items()}
    return lambda live: live["metadata"].setdefault("annotations", {}).update(named)


def passing_report(job: Json) -> Json:
    """Answer a parity Job as `encoder-plugins parity` does for an engine that is right."""
    return report(job, "Passed", "0.9999999")


def failing_report(job: Json) -> Json:
    """Answer a parity Job as `encoder-plugins parity` does for an engine that is wrong."""
    return report(job, "Failed", "0.8123")


def report(job: Json, result: str, cosine: str) -> Json:
    """Return a verdict on what the Job was asked."""
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return {
        "result": result,
        "artifact": ARTIFACT,
        "reference": REFERENCE,
        "binding": json.loads(args[args.index("--binding") + 1]),
        "metrics": [{"name": "cosine", "value": cosine, "threshold": "0.99999"}],
        "cases": 48,
        "worst": ["long-1"],
        "message": result,
    }


class Harness:
    """A cluster with one EncoderModel in it."""

    def __init__(self, manifest: Json | None = None) -> None:
        self.fake = FakeCluster()
        self.prep: Callable[[Json], tuple[int, Json]] = lambda job: (0, PREPARED)
        self.parity: Callable[[Json], Json] = passing_report
        # changes a serving pod as it starts
        self.starts: Callable[[Json], object] = lambda pod: None
        self.operator_settings = SETTINGS
        self.reconciler = self.operator()
        self.fake.put("encodermodels", manifest or encoder_model())

    def operator(self, settings: Settings | None = None) -> Reconciler:
        """Return a fresh operator, as after a restart."""
        cluster = Client(config=FakeCluster.config(), transport=self.fake)
        return Reconciler(cluster, settings or self.operator_settings)

    @property
    def live(self) -> Json:
        """Return the EncoderModel."""
        return self.fake.objects["encodermodels", "demo", "minilm"]

    @property
    def status(self) -> Json:
        """Return its status."""
        found: Json = self.live.get("status", {})
        return found

    def condition(self, name: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        entry = next(entry for entry in self.status["conditions"] if entry["type"] == name)
        return entry["status"], entry["reason"]

    def message(self, name: str) -> str:
        """Return the message of a condition."""
        return str(next(entry["message"] for entry in self.status["conditions"] if entry["type"] == name))

    def serving(self) -> set[str]:
        """Return the uids of the serving pods."""
        return {pod["metadata"]["uid"] for pod in self.fake.of("pods", component="serving")}

    def change(self, **serving: Any) -> None:
        """Edit the spec as a person does."""
        changed = copy.deepcopy(self.live)
        changed["spec"]["serving"] |= serving
        self.fake.put("encodermodels", changed)

    def edit(self, change: Callable[[Json], Any]) -> None:
        """Edit the whole object as a person does."""
        changed = copy.deepcopy(self.live)
        change(changed)
        self.fake.put("encodermodels", changed)

    async def reconcile(self) -> float | None:
        """Let the operator look once; what it says is what the page of the status allows."""
        after = await self.reconciler.reconcile("demo", "minilm")
        if ("encodermodels", "demo", "minilm") in self.fake.objects:
            self.no_message_is_repeated()
            for entry in self.status["conditions"]:
                assert conditions.may_have_reason(entry["type"], Reason(entry["reason"])), entry
            if self.condition("Ready")[0] == "True":
                # never early: whatever answers is what the spec asks for
                assert set(self.endpoints()) == {self.status["activeRevision"]}
        return after

    def no_message_is_repeated(self) -> None:
        """Check that no two conditions have the same message, except `Ready`, which repeats its cause."""
        messages = [entry["message"] for entry in self.status["conditions"] if entry["type"] != "Ready"]
        assert {text: count for text, count in Counter(messages).items() if count > 1} == {}

    async def settle(self, rounds: int = 20) -> None:
        """Let operator, controllers and kubelet take turns until nothing changes any more."""
        before = -1
        for _ in range(rounds):
            await self.reconcile()
            self.jobs()
            self.deployment()
            if self.fake.version == before:
                return
            before = self.fake.version
        raise AssertionError(f"the cluster does not settle: {self.status}")

    def jobs(self) -> None:
        """Run every Job that has no pod yet."""
        for job in self.fake.of("jobs"):
            component = job["metadata"]["labels"]["encoders.dev/component"]
            if any(job["metadata"]["uid"] in _owners(pod) for pod in self.fake.of("pods")):
                continue
            if component == "prep":
                code, said = self.prep(job)
            else:
                said = self.parity(job)
                code = {"Passed": 0, "Failed": 1}.get(said.get("result", ""), 2)
            self.end_job(job, code, said)

    def end_job(self, job: Json, code: int, said: Json) -> None:
        """Give a Job a pod that has ended, and its final condition."""
        ended = {"exitCode": code, "message": json.dumps(said), "finishedAt": format_time(self.fake.now())}
        self.fake.put(
            "pods",
            {
                "metadata": {
                    "name": f"{job['metadata']['name']}-x",
                    "namespace": "demo",
                    "labels": job["spec"]["template"]["metadata"]["labels"],
                    "ownerReferences": [controller("Job", job)],
                },
                "spec": {"nodeName": "node"},
                "status": {
                    "phase": "Failed" if code else "Succeeded",
                    "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
                },
            },
        )
        condition = {"type": "Failed" if code else "Complete", "status": "True", "reason": "BackoffLimitExceeded"}
        job = copy.deepcopy(job)
        job["status"] = {"conditions": [condition | {"lastTransitionTime": format_time(self.fake.now())}]}
        self.fake.put("jobs", job)

    def deployment(self) -> None:
        """Take one step of a rolling update (surge 1, unavailable 0) or of a recreation, and let the kubelet follow the gates."""
        found = self.fake.of("deployments")
        if not found:
            return
        wanted, template = found[0]["spec"]["replicas"], found[0]["spec"]["template"]
        revision = template["metadata"]["labels"]["encoders.dev/revision"]
        pods = self.fake.of("pods", component="serving")
        for pod in pods:
            self._kubelet(pod)
        new = [pod for pod in pods if pod["metadata"]["labels"]["encoders.dev/revision"] == revision]
        old = [pod for pod in pods if pod not in new]
        ready = [pod for pod in new if _is_ready(pod)]
        surplus = [*old, *new][: max(0, len(pods) - wanted)] if not old or ready or wanted == 0 else []
        # pods of a replica set that the rollout has left and that were never ready go first
        surplus = [pod for pod in old if not _is_ready(pod)] or surplus
        surge = 1 if old else 0
        if found[0]["spec"]["strategy"]["type"] == "Recreate":
            surplus, surge = old or new[wanted:], 0
        for pod in surplus:
            self.fake.remove("pods", "demo", pod["metadata"]["name"])
        left = len(pods) - len(surplus)
        if len(new) < wanted and left < wanted + surge and not surplus:
            self.start_pod(template)

    def start_pod(self, template: Json) -> Json:
        """Start a serving pod whose engine answers at once."""
        uid = str(uuid.uuid4())
        labels = dict(template["metadata"]["labels"])
        owner = self.replica_set(labels)
        pod: Json = {
            "metadata": {
                "name": f"minilm-{uid[:5]}",
                "namespace": "demo",
                "uid": uid,
                "labels": labels,
                "ownerReferences": [controller("ReplicaSet", owner)],
            },
            "spec": {"nodeName": "node", **copy.deepcopy(template["spec"])},
            "status": _running(uid),
        }
        self.starts(pod)
        return self.fake.put("pods", pod)

    def replica_set(self, labels: dict[str, str]) -> Json:
        """Return the ReplicaSet of a pod template with these labels, created if there is none yet."""
        name = f"minilm-{labels['encoders.dev/revision']}"
        found = self.fake.objects.get(("replicasets", "demo", name))
        if found is not None:
            return found
        owners = [controller("Deployment", self.fake.of("deployments")[0])]
        metadata = {"name": name, "namespace": "demo", "labels": labels, "ownerReferences": owners}
        return self.fake.put("replicasets", {"metadata": metadata})

    def run_pods(self) -> None:
        """Let pods that wait for something run, now and later."""
        self.starts = lambda pod: None
        for pod in copy.deepcopy(self.fake.of("pods", component="serving")):
            if not _is_ready(pod):
                pod["spec"]["nodeName"] = "node"
                pod["status"] = _running(pod["metadata"]["uid"])
                self.fake.put("pods", pod)

    def _kubelet(self, pod: Json) -> None:
        conditions = {entry["type"]: entry for entry in pod["status"]["conditions"]}
        both = all(conditions.get(t, {}).get("status") == "True" for t in ("ContainersReady", "encoders.dev/parity"))
        if conditions["Ready"]["status"] != str(both):
            changed = copy.deepcopy(pod)
            for entry in changed["status"]["conditions"]:
                if entry["type"] == "Ready":
                    entry["status"] = str(both)
            self.fake.put("pods", changed)

    def endpoints(self) -> list[str]:
        """Return the revisions of the pods that get traffic."""
        return [
            p["metadata"]["labels"]["encoders.dev/revision"]
            for p in self.fake.of("pods", component="serving")
            if _is_ready(p)
        ]


def _running(uid: str) -> Json:
    return {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "engine", "containerID": f"containerd://{uid}", "imageID": "sha256:1", "state": {}}
        ],
    }


def _is_ready(pod: Json) -> bool:
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"]["conditions"])


def controller(kind: str, live: Json) -> Json:
    """Return the owner reference of an object whose controller is ``live``."""
    return {"kind": kind, "name": live["metadata"]["name"], "uid": live["metadata"]["uid"], "controller": True}


def _owners(live: Json) -> list[str]:
    return [owner["uid"] for owner in live["metadata"].get("ownerReferences", [])]
