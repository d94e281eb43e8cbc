"""The API-only control plane with our chart on it, once for the suite; a namespace and an operator of its own for each test."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform import manifests, plane
from encoder_platform.fault_proxy import FaultProxy, through
from encoder_platform.kube import JOB, Kube
from encoder_platform.operator_process import OperatorProcess, kubeconfig_of_the_operator, operator_process
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)
        # the official client leaves open what an API server that is restarted breaks off
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"))


@pytest.fixture(scope="session", name="plane")
def running_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    # the permission for leases comes with it; operators of tests take one only if configured to
    with plane.running(tmp_path_factory.mktemp("plane"), values=("leaderElection.enabled=true",)) as found:
        StandIn(found.kube).furnish()
        yield found


@pytest.fixture(scope="session")
def kube(plane: Plane) -> Kube:
    return plane.kube


@pytest.fixture
def scene(kube: Kube, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A namespace with a claim called artifacts; it goes with the test."""
    test = request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_").replace("_", "-")
    found = Scene(f"{test[:30]}-{secrets.token_hex(3)}", kube)
    kube.apply(manifests.namespace(found.name))
    kube.apply(manifests.claim("artifacts", found.name))
    yield found
    kube.delete(("v1", "Namespace"), found.name)


@pytest.fixture
def stand_in(kube: Kube) -> Iterator[StandIn]:
    """What a kubelet, a scheduler and a provisioner would say, all the time; its attributes change what."""
    with StandIn(kube).running() as found:
        yield found


@pytest.fixture
def stopped_operator(kube: Kube, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that the test starts itself."""
    with operator_process(kube, tmp_path) as found:
        yield found


@pytest.fixture
def no_other_preps(kube: Kube, stand_in: StandIn) -> None:
    """Nothing is left of other tests' prep Jobs, for which an operator's limits hold as well."""
    selector = f"{naming.COMPONENT}=prep"
    wait_for("the end of other prep Jobs", lambda: not kube.all(JOB, None, selector), seconds=120)


@pytest.fixture
def operator(stopped_operator: OperatorProcess) -> OperatorProcess:
    """An operator that is ready."""
    stopped_operator.start()
    stopped_operator.wait_ready()
    return stopped_operator


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:  # type: ignore[attr-defined]
        found = item.funcargs.get("stopped_operator") or item.funcargs.get("behind")  # type: ignore[attr-defined]
        if found is not None and found.log.exists():
            print(f"--- the operator\n{found.log.read_text()[-12000:]}")
        where = item.funcargs.get("scene")  # type: ignore[attr-defined]
        if where is not None:
            for kinds in ("em,deploy,rs,job,pod,pvc,controllerrevisions", "events"):
                print(
                    f"--- {kinds}\n{where.kube.run('-n', where.name, 'get', kinds, '-o', 'wide', check=False)[-6000:]}"
                )
            print(where.kube.run("-n", where.name, "get", "em", "-o", "jsonpath={.items[*].status}", check=False))
    return report


@pytest.fixture
def proxy(plane: Plane) -> Iterator[FaultProxy]:
    """A proxy before the API server, for whom the test says."""
    with FaultProxy(plane.control.url, plane.control.folder / "pki" / "ca.crt").running() as found:
        yield found


@pytest.fixture
def behind(kube: Kube, proxy: FaultProxy, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that knows the API server by the proxy only; not started."""
    config = tmp_path / "proxied.kubeconfig"
    config.write_text(through(proxy, kubeconfig_of_the_operator(kube)))
    with operator_process(kube, tmp_path, {"KUBECONFIG": str(config), "ENCODER_RESYNC_SECONDS": "15"}) as found:
        yield found
