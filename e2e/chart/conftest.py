"""The chart with real helm of both generations, on an API server of its own where one is requested."""

from collections.abc import Iterator

import pytest

from encoder_node import control_plane
from encoder_node.control_plane import ControlPlane
from encoder_platform import chart, manifests
from encoder_platform.chart import Helm, OnCluster
from encoder_platform.kube import Kube

NAMESPACES = ("team-a", "team-b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def helm() -> Helm:
    return chart.helm()


@pytest.fixture(scope="session", params=chart.VERSIONS)
def either_helm(request: pytest.FixtureRequest) -> Helm:
    return chart.helm(request.param)


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without anything of ours on it."""
    with control_plane.running(tmp_path_factory.mktemp("control")) as found:
        yield found


@pytest.fixture(scope="session")
def kube(control: ControlPlane) -> Kube:
    return Kube(control.kubeconfig, control.kubectl)


@pytest.fixture
def cluster(kube: Kube) -> Iterator[OnCluster]:
    """Turns a helm into one that knows the cluster; what the test has installed goes with it."""
    for name in (chart.NAMESPACE, *NAMESPACES):
        kube.apply(manifests.namespace(name))
    used: list[Helm] = []

    def on_it(helm: Helm) -> Helm:
        used.append(Helm(helm.program, dict(kube.environment())))
        return used[-1]

    yield on_it
    for helm in used:
        helm.run("uninstall", chart.RELEASE, "--namespace", chart.NAMESPACE, "--ignore-not-found")
    kube.run("delete", "crd", "encodermodels.encoders.dev", "--ignore-not-found")
    for namespace in NAMESPACES:
        kube.run("-n", namespace, "delete", "deploy,pod,job,rolebinding", "--all", "--grace-period=0", "--force")
        # nothing collects garbage here, and an operator waits for the children of an earlier model of the same name
        kube.run("-n", namespace, "delete", "service,controllerrevision,configmap,pdb", "-l", "encoders.dev/model")
