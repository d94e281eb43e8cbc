import json
from pathlib import Path

import pytest
from encoder_node import cluster, kind
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


@pytest.mark.parametrize(("answers", "kind_of"), [(True, kind.KindCluster), (False, NodeCluster)])
def test_docker_decides(answers: bool, kind_of: type, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "docker_answers", lambda: answers)
    assert isinstance(cluster.detect(settings), kind_of)
