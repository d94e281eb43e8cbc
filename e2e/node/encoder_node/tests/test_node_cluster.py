"""The real node: up, images, volumes, down, and what is left after each way to end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from encoder_node import cluster as clusters
from encoder_node import settings as settings_module
from encoder_node import system_images
from encoder_node.errors import NodeError, WaitTimeoutError
from encoder_node.node import NodeCluster
from encoder_node.settings import Network, Paths
from encoder_node.waiting import wait_for

pytestmark = pytest.mark.cluster
IMAGE = "encoder-operator/probe:1"
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Machine:
    """Everything that a node could leave behind."""

    links: list[str]
    routes: list[str]
    rules: str
    mounts: list[str]
    groups: list[str]
    processes: list[str]
    sysctls: list[str]

    @staticmethod
    def now(cluster: NodeCluster) -> "Machine":
        # other work goes on on this machine: only processes that have to do with the node count
        ours = (str(cluster.settings.paths.node), str(cluster.bin_dir), str(settings_module.DATA))
        commands = [
            line for line in output("ps", "-eo", "pid=,args=").splitlines() if any(part in line for part in ours)
        ]
        root = Path("/sys/fs/cgroup")
        return Machine(
            links=[line.split(": ")[1] for line in output("ip", "-o", "link").splitlines()],
            routes=sorted(output("ip", "route", "show", "table", "all").splitlines()),
            rules=output("nft", "list", "ruleset"),
            mounts=[line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()],
            groups=[str(path) for path in root.rglob("*") if path.is_dir() and cluster.name in path.parts],
            processes=commands,
            sysctls=[Path("/proc/sys", name).read_text() for name in SYSCTLS],
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    usual = clusters.detect()
    if not isinstance(usual, NodeCluster):
        pytest.skip("a Docker daemon answers: kind is used, and the node of our own is not needed")
    if usual.sandbox.init is not None:
        pytest.skip("a cluster is up, and no second one fits beside it: `make demo-down` first")
    usual.build()
    # a cache of its own, with the same programs: the tests begin with no image, and leave none
    place = usual.settings.paths.cache / "tests"
    shutil.rmtree(place, ignore_errors=True)
    found = NodeCluster(
        replace(usual.settings, paths=Paths(settings_module.cache_folder({"ENCODER_CACHE": str(place)})))
    )
    found.settings.paths.cache.mkdir(parents=True)
    found.settings.paths.bin.symlink_to(usual.settings.paths.bin)
    yield found
    found.down()
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def untouched(cluster: NodeCluster) -> Machine:
    return Machine.now(cluster)


@pytest.fixture
def up(cluster: NodeCluster, untouched: Machine) -> NodeCluster:
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def archive(cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    subprocess.run(
        ["gcc", "-static", "-o", str(folder / "probe"), str(Path(__file__).with_name("probe.c"))], check=True
    )
    system_images.write(folder / "probe.tar", IMAGE, folder / "probe", user="10001:10001")
    return folder / "probe.tar"


class Kubectl:
    def __init__(self, cluster: NodeCluster) -> None:
        self._command = [str(cluster.bin_dir / "kubectl"), "--kubeconfig", str(cluster.kubeconfig())]

    def __call__(self, *arguments: str, stdin: Any = None) -> str:
        text = None if stdin is None else json.dumps(stdin)
        answer = subprocess.run(
            [*self._command, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


def pod(name: str, image: str, *, claim: str | None = None) -> dict[str, Any]:
    """A pod under the rules for restricted pods, so that the node's seccomp and users are put to use."""
    container: dict[str, Any] = {
        "name": "probe",
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    if claim is not None:
        container["args"] = ["/data/who"]
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def start_pod(kubectl: Kubectl, body: dict[str, Any]) -> float:
    """Starts a pod and returns the seconds until it was ready."""
    began = time.monotonic()
    kubectl("apply", "-f", "-", stdin=body)
    kubectl("wait", "--for=condition=Ready", f"pod/{body['metadata']['name']}", "--timeout=30s")
    return time.monotonic() - began


def test_up_says_how_long_it_took_and_the_second_up_only_looks(
    up: NodeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    up.down()
    capsys.readouterr()
    up.up()
    seconds = [
        float(found) for found in re.findall(r"(?:node Ready|cluster DNS answers) +([\d.]+) s", capsys.readouterr().out)
    ]
    assert len(seconds) == 2
    up.up()
    assert "it was up" in capsys.readouterr().out
    assert up.status().up
    assert "v1.36." in Kubectl(up)("get", "nodes", "-o", "wide")
    memory = up.sandbox.groups.memory()
    assert memory is not None
    assert memory < 0.8 * 2**30


def test_pod_starts_from_a_loaded_image_by_tag_and_by_digest_and_writes_to_its_volume(
    up: NodeCluster, archive: Path
) -> None:
    up.load([archive])
    kubectl = Kubectl(up)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kubectl(
        "apply",
        "-f",
        "-",
        stdin={"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": claim},
    )
    start_pod(kubectl, pod("by-tag", IMAGE, claim="data"))
    start_pod(kubectl, pod("by-digest", f"encoder-operator/probe@{system_images.digest(archive)}"))
    assert kubectl("logs", "by-tag") == "here\n"
    volume = kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
    written = up.settings.paths.volumes / volume / "who"
    # the group of the image's USER is lost on the way, as on every cluster: a pod that wants it says runAsGroup
    assert written.read_text() == "10001 0\n"
    assert (written.stat().st_uid, written.stat().st_gid) == (10001, 10001)


def test_volume_of_a_deleted_claim_is_emptied_and_used_again(up: NodeCluster, archive: Path) -> None:
    up.load([archive])
    kubectl = Kubectl(up)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "short"}, "spec": spec}
    kubectl("apply", "-f", "-", stdin=claim)
    start_pod(kubectl, pod("short", IMAGE, claim="short"))
    volume = kubectl("get", "pvc", "short", "-o", "jsonpath={.spec.volumeName}")
    kubectl("delete", "pod/short", "pvc/short", "--timeout=30s")
    kubectl("wait", "--for=jsonpath={.status.phase}=Released", f"pv/{volume}", "--timeout=30s")
    assert up.recycle_volumes() == [volume]
    kubectl("wait", "--for=jsonpath={.status.phase}=Available", f"pv/{volume}", "--timeout=30s")
    assert list((up.settings.paths.volumes / volume).iterdir()) == []


def test_archive_without_a_layer_that_is_unpacked_makes_an_image(
    up: NodeCluster, archive: Path, tmp_path: Path
) -> None:
    up.load([archive])
    program = archive.with_name("probe")
    system_images.write(tmp_path / "whole.tar", "encoder-operator/thin:1", program, user="10002:10002")
    # the layer is the first blob and by far the largest
    with tarfile.open(tmp_path / "whole.tar") as whole, tarfile.open(tmp_path / "thin.tar", "w") as thin:
        for member in whole.getmembers():
            if member.size < program.stat().st_size:
                thin.addfile(member, whole.extractfile(member))
    chains = up.unpacked_chains()
    with (tmp_path / "thin.tar").open("rb") as stream:
        up.import_image(stream)
    assert up.unpacked_chains() == chains
    start_pod(Kubectl(up), pod("thin", "encoder-operator/thin:1"))


def test_images_outlive_the_node_and_its_containers_do_not(up: NodeCluster, archive: Path) -> None:
    up.load([archive])
    before = up.images()
    start_pod(Kubectl(up), pod("before", IMAGE))
    up.down()
    assert not up.settings.paths.var.exists()
    up.up()
    assert {name: digest for name, digest in up.images().items() if "probe" in name} == {
        name: digest for name, digest in before.items() if "probe" in name
    }
    tasks = up.store.ctr("tasks", "ls", "-q").split()
    assert set(up.store.ctr("containers", "ls", "-q").split()) == set(tasks)
    start_pod(Kubectl(up), pod("after", IMAGE))


def test_command_on_the_node_sees_the_nodes_mounts_and_the_machine_does_not(up: NodeCluster) -> None:
    place = up.settings.paths.volumes / "local-40"
    up.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)])
    assert "1024" in up.run(["df", "-k", "--output=size", str(place)])
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


def test_down_leaves_nothing(up: NodeCluster, untouched: Machine) -> None:
    up.down()
    assert Machine.now(up) == untouched
    assert {path.name for path in up.settings.paths.node.iterdir()} == {"log"}
    up.down()


@pytest.mark.parametrize(
    "moment", ["claim", "sandbox.json", "ready", "etcd.json", "kube-apiserver.json", "kubelet.json"]
)
def test_killed_up_is_cleaned_away(moment: str, cluster: NodeCluster, untouched: Machine) -> None:
    cluster.down()
    environment = {**os.environ, "ENCODER_CACHE": str(cluster.settings.paths.cache.parent)}
    process = subprocess.Popen([sys.executable, "-m", "encoder_node", "up"], env=environment, stdout=subprocess.DEVNULL)
    wait_for(f"{moment} of the node", (cluster.settings.paths.run / moment).exists, seconds=60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # a new object, as a new command would have: it knows only what is on the disk
    NodeCluster(cluster.settings).down()
    # a component that was started and not noted any more ends with the node's PID 1, and what waits for it outside a moment later
    with suppress(WaitTimeoutError):
        wait_for("nothing left", lambda: Machine.now(cluster) == untouched, seconds=5)
    assert Machine.now(cluster) == untouched


def test_terminated_up_cleans_up_by_itself(cluster: NodeCluster, untouched: Machine) -> None:
    cluster.down()
    environment = {**os.environ, "ENCODER_CACHE": str(cluster.settings.paths.cache.parent)}
    process = subprocess.Popen([sys.executable, "-m", "encoder_node", "up"], env=environment, stderr=subprocess.PIPE)
    wait_for("the API server's start", (cluster.settings.paths.run / "kube-apiserver.json").exists, seconds=60)
    process.terminate()
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (130, b"encoder_node: interrupted\n")
    assert Machine.now(cluster) == untouched


def test_killed_component_is_reported_by_status_and_mended_by_up(up: NodeCluster) -> None:
    # by `ps`: others of them may end while they are looked at
    shown = subprocess.run(["ps", "-A", "-o", "pid=,comm="], capture_output=True, text=True, check=True).stdout
    named = {
        int(pid) for pid, name in (line.split(maxsplit=1) for line in shown.splitlines()) if name == "kube-scheduler"
    }
    (scheduler,) = named & set(up.sandbox.groups.members())
    os.kill(scheduler, signal.SIGKILL)
    wait_for("the end of the scheduler", lambda: not up.status().up, seconds=10)
    assert any("kube-scheduler (logs in" in line for line in up.status().lines)
    NodeCluster(up.settings).up()
    assert up.status().up


def test_step_that_fails_shows_the_log_and_leaves_nothing(cluster: NodeCluster, untouched: Machine) -> None:
    cluster.down()
    # smaller than what one node is given of it
    broken = NodeCluster(replace(cluster.settings, network=replace(Network(), pods="10.244.0.0/28")))
    with pytest.raises(NodeError) as caught:
        broken.up()
    assert "10.244.0.0/28" in caught.value.explain().partition("the end of")[2]
    assert Machine.now(cluster) == untouched
