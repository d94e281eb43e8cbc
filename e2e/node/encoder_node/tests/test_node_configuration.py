import json
import re
import tomllib
from pathlib import Path

import pytest

from encoder_node import configuration
from encoder_node.errors import NodeError
from encoder_node.settings import DATA, Settings, cache_folder

PROGRAMS = Path("/built/programs")


@pytest.fixture
def rendered(settings: Settings) -> dict[str, str]:
    marks = configuration.values(settings, PROGRAMS, {"PAUSE_IMAGE": "localhost/pause:1", "KUBERNETES": "v1.36.3"})
    return configuration.files(DATA, marks)


def test_no_mark_is_left_in_any_file(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        assert not re.search(r"@[A-Z_]+@", text), name


def test_mark_without_a_value_is_an_error_that_names_it() -> None:
    with pytest.raises(NodeError, match="@NO_SUCH@ has no value; known are NAME"):
        configuration.render("a @NO_SUCH@ b", {"NAME": "x"})


def test_containerd_keeps_its_root_outside_of_the_node(rendered: dict[str, str], settings: Settings) -> None:
    root = Path(tomllib.loads(rendered["containerd.toml"])["root"])
    assert root == settings.paths.containerd
    assert not root.is_relative_to(settings.paths.node)


def test_containerd_serves_pods_except_while_it_cleans_up(rendered: dict[str, str]) -> None:
    usual = set(tomllib.loads(rendered["containerd.toml"])["disabled_plugins"])
    sweeping = set(tomllib.loads(rendered["containerd-sweep.toml"])["disabled_plugins"])
    assert usual.isdisjoint(configuration.CRI_PLUGINS)
    assert sweeping == usual | set(configuration.CRI_PLUGINS)


def test_network_of_pods_is_the_settings_one(rendered: dict[str, str], settings: Settings) -> None:
    ipam = json.loads(rendered["cni/10-pods.conflist"])["plugins"][0]["ipam"]
    assert ipam["ranges"] == [[{"subnet": settings.network.node_pods}]]


def test_scripts_are_taken_as_they_are(rendered: dict[str, str]) -> None:
    assert rendered["sandbox.sh"] == (DATA / "sandbox.sh").read_text()
    assert '"$@"' in rendered["sandbox.sh"]


def test_every_component_names_its_own_credentials(settings: Settings) -> None:
    pki = settings.paths.pki
    for component, kubeconfig in (
        (configuration.controller_manager(settings), "controller-manager.conf"),
        (configuration.scheduler(settings), "scheduler.conf"),
        (configuration.kubelet(settings), "kubelet.conf"),
    ):
        assert f"--kubeconfig={pki / kubeconfig}" in component.arguments
    assert str(pki / "proxy.conf") in (DATA / "kube-proxy.yaml").read_text().replace("@PKI@", str(pki))


def test_component_is_called_as_its_program(settings: Settings) -> None:
    components = (
        configuration.containerd(settings),
        configuration.etcd(settings),
        configuration.api_server(settings),
        configuration.controller_manager(settings),
        configuration.scheduler(settings),
        configuration.kubelet(settings),
        configuration.kube_proxy(settings),
    )
    names = [component.name for component in components]
    assert len(set(names)) == len(names)
    assert all(argument.startswith("-") for component in components for argument in component.arguments[::2])


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"ENCODER_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/encoder-operator"),
        ({"ENCODER_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/encoder-operator"),
        ({"HOME": "/c"}, "/c/.cache/encoder-operator"),
    ],
)
def test_cache_is_where_the_environment_says(environment: dict[str, str], folder: str) -> None:
    assert cache_folder(environment) == Path(folder)
