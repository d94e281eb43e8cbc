"""The chart with real helm of both generations, on an API server of its own where one is asked."""

from collections.abc import Iterator

import pytest

from encoder_node import control_plane
from encoder_node.control_plane import ControlPlane
from encoder_platform import chart
from encoder_platform.chart import Helm


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
