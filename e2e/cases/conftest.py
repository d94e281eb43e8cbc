"""The cluster with our chart on it, once for the suite; a namespace of its own for each case; what went wrong, printed when a case fails."""

from collections.abc import Iterator

import pytest

from encoder_platform import install
from encoder_platform.kube import Kube
from encoder_platform.space import Space, explain, make_space


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def platform() -> install.Platform:
    """The cluster stays up after the suite: `make demo-down` ends it."""
    return install.bring_up()


@pytest.fixture(scope="session")
def kube(platform: install.Platform) -> Kube:
    return platform.kube


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        space = item.funcargs.get("space") or item.funcargs.get("served")  # type: ignore[attr-defined]
        if space is not None:
            explain(space)
    return report


@pytest.fixture
def space(platform: install.Platform, request: pytest.FixtureRequest) -> Iterator[Space]:
    module = request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_").replace("_", "-")
    made = make_space(platform, module[:30])
    yield made
    platform.kube.delete(("v1", "Namespace"), made.name)
