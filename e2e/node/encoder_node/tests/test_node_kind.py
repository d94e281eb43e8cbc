import json
from pathlib import Path

import pytest

from encoder_node import cluster, kind
from encoder_node.errors import MissingPrerequisiteError
from encoder_node.node import NodeCluster
from encoder_node.settings import Settings


def test_cluster_is_made_from_a_pinned_node_image_with_a_kubeconfig_of_its_own() -> None:
    command = kind.create_command("encoder-node", Path("/cache/kubeconfig"))
    assert command[:3] == ["kind", "create", "cluster"]
    assert command[command.index("--image") + 1] == kind.NODE_IMAGE
    assert "@sha256:" in kind.NODE_IMAGE
    assert command[command.index("--kubeconfig") + 1] == "/cache/kubeconfig"
    assert command[command.index("--config") + 1] == "-"


def test_configuration_is_one_node() -> None:
    assert [node["role"] for node in json.loads(kind.configuration())["nodes"]] == ["control-plane"]


def test_node_image_has_the_minor_version_of_our_own_node(settings: Settings) -> None:
    ours = NodeCluster(settings).programs.versions()["k8s.io/kubernetes"]
    assert kind.NODE_IMAGE.split(":")[1].split(".")[:2] == ours.split(".")[:2]


def test_cluster_is_removed_by_name() -> None:
    command = kind.delete_command("n", Path("/k"))
    assert command == ["kind", "delete", "cluster", "--name", "n", "--kubeconfig", "/k"]


def test_command_runs_in_the_nodes_container(settings: Settings) -> None:
    command = kind.KindCluster(settings).command(["mount"])
    assert command == ["docker", "exec", "--interactive", "encoder-node-control-plane", "mount"]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of stand-ins that succeed and note how they were called; returns the notes."""
    folder, notes = tmp_path / "programs", tmp_path / "notes"
    folder.mkdir()
    for name in ("kind", "docker", "kubectl", "helm"):
        (folder / name).write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> {notes}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return notes


def test_build_gets_the_node_image_and_links_the_users_programs(settings: Settings, programs: Path) -> None:
    built = kind.KindCluster(settings)
    built.build()
    built.build()
    assert programs.read_text().splitlines() == [f"docker image inspect {kind.NODE_IMAGE}"] * 2
    assert (built.bin_dir / "kubectl").readlink() == programs.with_name("programs") / "kubectl"


def test_down_removes_the_cluster_and_its_kubeconfig(settings: Settings, programs: Path) -> None:
    found = kind.KindCluster(settings)
    found.kubeconfig().parent.mkdir(parents=True)
    found.kubeconfig().touch()
    found.down()
    assert programs.read_text() == f"kind delete cluster --name encoder-node --kubeconfig {found.kubeconfig()}\n"
    assert not found.kubeconfig().exists()


def test_cluster_that_kind_does_not_list_is_down(settings: Settings, programs: Path) -> None:
    assert kind.KindCluster(settings).status().lines == ("down",)


def test_missing_programs_are_named_in_one_line(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPrerequisiteError, match="lacks kind, kubectl, helm"):
        kind.KindCluster(settings).build()


def test_archive_goes_to_the_node_as_a_stream(settings: Settings, programs: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    archive.touch()
    kind.KindCluster(settings).load([archive])
    node = "docker exec --interactive encoder-node-control-plane ctr -n k8s.io"
    assert programs.read_text().splitlines() == [f"{node} images import -", f"{node} images ls"]


@pytest.mark.parametrize(("answers", "kind_of"), [(True, kind.KindCluster), (False, NodeCluster)])
def test_docker_decides(answers: bool, kind_of: type, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "docker_answers", lambda: answers)
    assert isinstance(cluster.detect(settings), kind_of)
