"""Case 9: a served model outlives its status, its annotations and the operator's memory; and only the operator can write its verdict."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import client, install, manifests
from encoder_platform.kube import DEPLOYMENT, JOB, POD, REVISION, Body, Kube, condition
from encoder_platform.space import Space

SERVICE, REPLICAS = ("v1", "Service"), ("apps/v1", "ReplicaSet")
OURS = "encoders.dev/model=minilm"


def children(space: Space) -> dict[str, set[str]]:
    """What must not change: which objects there are, the Deployment's generation, and which containers run."""
    kinds = (DEPLOYMENT, REPLICAS, SERVICE, JOB, REVISION, POD)
    found = {o["metadata"]["uid"]: o for kind in kinds for o in space.kube.all(kind, space.name, OURS)}
    return {
        "objects": {f"{o.get('kind')} {o['metadata']['name']} {uid}" for uid, o in found.items()},
        "deployment": {str(o["metadata"]["generation"]) for o in space.kube.all(DEPLOYMENT, space.name, OURS)},
        "containers": {p["status"]["containerStatuses"][0]["containerID"] for p in space.pods()},
    }


def records(space: Space) -> set[str]:
    """The objects that outlive pods: Jobs, revisions, verdicts."""
    return {name for name in children(space)["objects"] if name.startswith(("Job", "ControllerRevision"))}


def status_without_times(space: Space) -> Body:
    """The status without its times."""
    status: Body = json.loads(json.dumps(space.model()["status"]))
    for entry in status["conditions"]:
        del entry["lastTransitionTime"], entry["observedGeneration"]
    return {key: value for key, value in status.items() if key != "observedGeneration"}


def replace(kube: Kube, body: Body, *options: str) -> None:
    """`kubectl replace`: what is not in the body is gone."""
    kube.run("replace", *options, "-f", "-", stdin=json.dumps(body))


@pytest.mark.alone
@pytest.mark.complaint(14)
@pytest.mark.fault(
    "status and annotations are wiped with `kubectl replace`, and the operator restarts",
    "an empty status until the first reconcile",
    "the status is restored; no pod, Job or ControllerRevision changes",
)
def test_nothing_rolls_when_status_and_annotations_are_wiped(served: Space) -> None:
    kube, before, status = served.kube, children(served), status_without_times(served)
    with install.operator_stopped(kube):
        body = served.manifest()
        replace(kube, body)
        replace(kube, {**body, "status": {}}, "--subresource=status")
        assert "status" not in served.model() or not served.model()["status"].get("conditions")
        for kind in ("deployment", "service", "job", "pod"):
            for found in json.loads(kube.run("-n", served.name, "get", kind, "-l", OURS, "-o", "json"))["items"]:
                ours = [key for key in found["metadata"].get("annotations", {}) if key.startswith("encoders.dev/")]
                if ours:
                    gone = [f"{key}-" for key in ours]
                    kube.run("-n", served.name, "annotate", kind, found["metadata"]["name"], *gone)
    served.wait_current("Ready")
    wait_for("the status as it was", lambda: status_without_times(served) == status, seconds=60)
    assert children(served) == before


@pytest.mark.fault(
    "a user edits the Deployment: another image, no readiness gate",
    "nothing: the operator owns the fields",
    "they are corrected before a pod of the edit can serve; no request is lost",
)
def test_an_edited_deployment_is_put_back(served: Space) -> None:
    pods = {pod["metadata"]["uid"] for pod in served.pods()}
    template = (served.deployment() or {})["spec"]["template"]
    with client.traffic(served.kube, served.name, served.url()) as traffic:
        edit = {"readinessGates": [], "containers": [{"name": "engine", "image": "nowhere.invalid/another:1"}]}
        patch = json.dumps({"spec": {"template": {"spec": edit}}})
        served.kube.run("-n", served.name, "patch", "deployment", "minilm", "--type=strategic", "-p", patch)
        wait_for("the edit undone", lambda: (served.deployment() or {})["spec"]["template"] == template, seconds=60)
        wait_for("its pod gone", lambda: {p["metadata"]["uid"] for p in served.pods()} == pods, seconds=120)
    assert traffic.failures == []
    served.wait_current("Ready")


@pytest.mark.fault(
    "the spec is edited while the model is paused",
    "`Paused`; `UpToDate` is False",
    "nothing changes until the pause ends; if the edit is reverted before that, it has no effect",
)
def test_paused_nothing_is_changed(served: Space) -> None:
    before, uid = children(served), served.pods()[0]["metadata"]["uid"]
    served.patch({"paused": True, "serving": {"maxModelLen": 64}})
    paused = served.wait_condition("Progressing", "Paused", seconds=60)
    assert paused["status"] == "False"
    served.kube.run("-n", served.name, "scale", "em/minilm", "--replicas=0")
    served.wait_condition("Progressing", "Paused", seconds=60)
    assert condition(served.model(), "Available")["status"] == "True"
    assert children(served) == before
    served.patch({"paused": False, "serving": {"maxModelLen": None, "replicas": 1}})
    served.wait_ready(seconds=60)
    assert children(served) == before
    assert served.pods()[0]["metadata"]["uid"] == uid


@pytest.mark.alone
@pytest.mark.complaint(9)
@pytest.mark.fault(
    "the operator is upgraded to another default image and other settings",
    "`UpdateAvailable` with `NewDefaults`",
    "no pod changes until the user requests the new defaults",
)
def test_an_upgrade_of_the_operator_changes_no_pod(served: Space) -> None:
    before, images = children(served), served.platform.images
    values = install.chart_values(images)
    values["engines"]["cpu"]["sentence_transformer"]["digest"] = images["e2e"].split("@")[1]
    with install.upgraded(served.platform, engines=values["engines"], settings={"concurrency": 3}):
        found = served.wait_condition("UpdateAvailable", "NewDefaults", seconds=60)
        assert found["status"] == "True"
        served.wait_current("Ready")
        assert children(served) == before
    wait_for("no update", lambda: condition(served.model(), "UpdateAvailable")["status"] == "False", seconds=60)
    assert children(served) == before


def leader(kube: Kube, pods: list[Body]) -> Body | None:
    """The one of the operator's pods that holds the Lease."""
    lease = kube.get(("coordination.k8s.io/v1", "Lease"), "encoder-operator", install.OPERATOR_NAMESPACE)
    identity = str((lease or {}).get("spec", {}).get("holderIdentity"))
    return next((pod for pod in pods if pod["metadata"]["name"] in identity), None)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.fault(
    "the leader of two operators is frozen for longer than its Lease, and resumed",
    "only a log message of the new leader",
    "the other one takes over within seconds; the resumed one changes nothing",
)
def test_a_frozen_operator_is_taken_over_from(served: Space) -> None:
    kube, before = served.kube, children(served)
    with install.upgraded(served.platform, replicas=2):
        pods = install.operator_pods(kube)
        assert len(pods) == 2
        first = wait_for("a leader", lambda: leader(kube, pods), seconds=60)
        container = first["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        tasks = ["ctr", "-n", "k8s.io", "tasks"]
        served.platform.cluster.run([*tasks, "pause", container])
        try:
            served.patch({"rollout": {"progressDeadlineSeconds": 700}})
            served.wait_current("Ready", seconds=90)
            second = leader(kube, pods)
            assert second not in (None, first)
        finally:
            served.platform.cluster.run([*tasks, "resume", container])
        served.patch({"rollout": None})
        served.wait_current("Ready", seconds=90)
        assert leader(kube, pods) == second
    assert children(served) == before


def tenant(space: Space) -> list[str]:
    """A user who has the cluster role admin in the namespace, and may even patch the status of pods; returns how kubectl is him."""
    rules = [{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get", "patch", "update"]}]
    meta = {"name": "more-than-admin", "namespace": space.name}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules}
    user = {"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}
    for name, kind, of in (("admin", "ClusterRole", "admin"), ("more", "Role", "more-than-admin")):
        reference = {"kind": kind, "name": of, "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "roleRef": reference}
        space.kube.apply(role, {**binding, "metadata": {**meta, "name": name}, "subjects": [user]})
    return ["-n", space.name, "--as=tenant"]


def forged_job(space: Space, revision: str) -> Body:
    """A Job that says of itself what the operator's parity Job would say, whatever it has found."""
    labels = {
        "encoders.dev/model": "minilm",
        "encoders.dev/component": "parity",
        "encoders.dev/revision": revision,
        "app.kubernetes.io/managed-by": "encoder-operator",
    }
    pod = manifests.client_pod(space.platform.images["e2e"], space.name)["spec"]
    template = {"metadata": {"labels": labels}, "spec": {**pod, "restartPolicy": "Never"}}
    meta = {"name": f"minilm-{revision}-parity-77", "namespace": space.name, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}}


@pytest.mark.fault(
    "a tenant with the admin role writes what only the operator may: gate, verdict, revision, parity Job",
    "the API server rejects it with a reason",
    "nothing changes",
)
def test_a_tenant_can_neither_open_the_gate_nor_forge_a_verdict(served: Space) -> None:
    kube, he = served.kube, tenant(served)
    assert "yes" in kube.run(*he, "auth", "can-i", "delete", "pods"), "the role is not what this test thinks it is"
    before, pod = children(served), served.pods()[0]
    revision = served.model()["status"]["activeRevision"]
    kept = kube.all(REVISION, served.name, OURS)
    verdict = next(r for r in kept if r["metadata"]["labels"]["encoders.dev/component"] == "verdict")
    forged = {**verdict, "metadata": {**verdict["metadata"], "name": f"minilm-{revision}-forged-verdict"}}
    del forged["metadata"]["uid"], forged["metadata"]["resourceVersion"], forged["metadata"]["managedFields"]
    gate = {"status": {"conditions": [{"type": "encoders.dev/parity", "status": "True", "reason": "Tenant"}]}}
    job = forged_job(served, revision)
    own_pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**job["metadata"]},
        "spec": job["spec"]["template"]["spec"],
    }
    other = {"spec": {"containers": [{"name": "engine", "image": served.platform.images["e2e"]}]}}
    name = pod["metadata"]["name"]
    attempts: dict[str, tuple[list[str], Body | None]] = {
        "open the gate": (["patch", "pod", name, "--subresource=status", "-p", json.dumps(gate)], None),
        "write a verdict": (["create", "-f", "-"], forged),
        "change a verdict": (
            ["patch", "controllerrevision", verdict["metadata"]["name"], "-p", '{"revision": 9}'],
            None,
        ),
        "delete a verdict": (["delete", "controllerrevision", verdict["metadata"]["name"]], None),
        "write the status": (
            ["patch", "em", "minilm", "--subresource=status", "--type=merge", "-p", '{"status":{}}'],
            None,
        ),
        "run a parity Job": (["create", "-f", "-"], job),
        "run a pod of a parity Job": (["create", "-f", "-"], own_pod),
        "put another image into a verified pod": (["patch", "pod", name, "-p", json.dumps(other)], None),
    }
    outputs = {
        what: kube.run(*he, *command, stdin=json.dumps(body) if body else None, check=False)
        for what, (command, body) in attempts.items()
    }
    assert {
        what: output for what, output in outputs.items() if "orbidden" not in output and "denied" not in output
    } == {}
    assert children(served) == before


def vandal(space: Space) -> None:
    """A pod that can write where the artifacts are."""
    pod = manifests.client_pod(space.platform.images["e2e"], space.name, "vandal")
    for mount in pod["spec"]["containers"][0]["volumeMounts"]:
        mount.pop("readOnly", None)
    space.kube.apply(pod)
    wait_for(
        "the vandal",
        lambda: condition(space.kube.get(POD, "vandal", space.name), "Ready").get("status") == "True",
        seconds=60,
    )


FLIP = """
import os, pathlib, sys
file = next(pathlib.Path("/artifacts", sys.argv[1]).rglob("*.safetensors"))
times, mode = os.stat(file), file.stat().st_mode
for path in (file.parent, file):
    path.chmod(0o755)
with file.open("r+b") as stream:
    stream.seek(-1, 2); last = stream.read(1)[0]
    stream.seek(-1, 2); stream.write(bytes([last ^ 1]))
os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
file.chmod(mode)
"""


@pytest.mark.complaint(20)
@pytest.mark.fault(
    "one bit of the artifact changes after the verdict, and the engine is killed with SIGKILL",
    "`Available` False, `Degraded` with `CrashLoop` and the file's name",
    "the container does not start until the artifact is intact; then without another parity check",
)
def test_a_tampered_artifact_keeps_a_restarted_container_from_starting(served: Space) -> None:
    vandal(served)
    status, before = served.model()["status"], records(served)
    key = status["artifact"]["key"]

    def flip() -> None:
        served.kube.run("-n", served.name, "exec", "vandal", "--", "python3", "-c", FLIP, key)

    def killed_and_refused() -> Body | None:
        container = served.pods()[0]["status"]["containerStatuses"][0]
        ended = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get("terminated")
        return ended if container["restartCount"] >= 1 and ended and ended["exitCode"] not in (0, 137) else None

    flip()
    container = served.pods()[0]["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    served.platform.cluster.run(["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])
    ended = wait_for("the container refused to start", killed_and_refused, seconds=120)
    assert "safetensors" in ended["message"]
    served.wait_condition("Degraded", "CrashLoop", seconds=60)
    available = condition(served.model(), "Available")
    assert available["status"] == "False"
    assert "safetensors" in available["message"]

    # suspended, it takes its pod away and keeps all the rest
    served.patch({"suspend": True})
    wait_for("no pod", lambda: not served.pods(), seconds=150)
    wait_for("Suspended", lambda: served.model()["status"]["phase"] == "Suspended", seconds=30)
    suspended = served.model()
    assert suspended["status"]["artifact"] == status["artifact"]
    assert suspended["spec"]["serving"]["replicas"] == 1
    flip()
    served.patch({"suspend": False})
    assert served.wait_ready()["status"]["parity"] == status["parity"]
    assert served.post({"data": {"text": "whole again"}}).status == 200
    assert records(served) == before
