"""The cluster with our chart on it, once for the suite; a namespace of its own for each case; what went wrong, printed when a case fails.

Cases of several processes share the cluster: one marked `alone` waits for the others, and they for it.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from encoder_node.settings import load
from encoder_platform import install
from encoder_platform.kube import Kube
from encoder_platform.space import Space, explain, make_space
from encoder_platform.turns import turn

# longer than any case may take
TURN_SECONDS = 2400
# files with many long cases, each with a model of its own
SHARE_NOTHING = {"test_every_plugin_answers"}


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's cases go to one process, which starts once what they share; where they share nothing, any process takes the next."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return nodeid if Path(file).stem in SHARE_NOTHING else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases, and order their files: those of cases that run alone first, then those with the most cases.

    Processes wait for a case that runs alone. At the start the suite's other half has the processors meanwhile; at the end nobody has.
    """
    others: list[pytest.Item] = []
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        item.add_marker(pytest.mark.cluster)
        own = Path(__file__).parent in item.path.parents
        (files.setdefault(item.path, []) if own else others).append(item)

    def place(cases: list[pytest.Item]) -> tuple[bool, int]:
        run = [case for case in cases if case.get_closest_marker("soak") is None]
        return (not run or any(case.get_closest_marker("alone") is None for case in run), -len(run))

    items[:] = others + [case for cases in sorted(files.values(), key=place) for case in cases]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around setup and teardown, too: there models start, and waiting for a turn is no time of the case."""
    if Path(__file__).parent not in item.path.parents:
        return (yield)
    with turn(load().paths.cache / "turns", alone=item.get_closest_marker("alone") is not None, seconds=TURN_SECONDS):
        return (yield)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> install.Platform:
    """The cluster stays up after the suite: `make demo-down` ends it. The first of several processes brings it up for all."""
    own = tmp_path_factory.getbasetemp()
    return install.shared(own if worker_id == "master" else own.parent)


@pytest.fixture(scope="session")
def kube(platform: install.Platform) -> Kube:
    return platform.kube


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        space = item.funcargs.get("space") or item.funcargs.get("served")  # type: ignore[attr-defined]
        if space is not None:
            explain(space)
    return report


@pytest.fixture
def space(platform: install.Platform, request: pytest.FixtureRequest) -> Iterator[Space]:
    made = make_space(platform, _prefix(request))
    yield made
    platform.kube.delete(("v1", "Namespace"), made.name)


@pytest.fixture(scope="module")
def served(platform: install.Platform, request: pytest.FixtureRequest) -> Iterator[Space]:
    """One model that serves, for all tests of a module: each leaves it as it found it. An engine takes its time to start."""
    made = make_space(platform, _prefix(request))
    made.apply_model(**getattr(request.module, "MODEL", {}))
    made.wait_ready()
    yield made
    platform.kube.delete(("v1", "Namespace"), made.name)


def _prefix(request: pytest.FixtureRequest) -> str:
    return request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_").replace("_", "-")[:30]  # type: ignore[no-any-return]
