"""From nothing to an installed operator: the cluster, the images on it, the chart, the tests' hub. Each step is skipped where it is done."""

import json
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from encoder_node import cluster as clusters
from encoder_node import images as image_store
from encoder_node import progress, targets
from encoder_node.targets import Target
from encoder_node.waiting import exclusive, wait_for
from encoder_platform import manifests
from encoder_platform.kube import DEPLOYMENT, Body, Kube

OPERATOR_NAMESPACE = "encoder-operator"
# all programs and images, where nothing is built yet
BRING_UP_SECONDS = 3600
CHART = Path(__file__).resolve().parents[3] / "charts" / "encoder-operator"


@dataclass(frozen=True)
class Platform:
    """A cluster that is ready for EncoderModels.

    Attributes:
        cluster: the node of ours, or kind.
        kube: its API.
        images: target name to the reference that the cluster knows, with digest.
        hub_revision: the revision of the hub's repositories, 40 hex digits.
        other_revision: a second valid revision of the same repository.
    """

    cluster: clusters.Cluster
    kube: Kube
    images: Mapping[str, str]
    hub_revision: str
    other_revision: str


def bring_up(plugins: Collection[str] | None = None) -> Platform:
    """Bring up what is missing, saying so line by line, and return what there is.

    Args:
        plugins: Those whose images are needed; all without it.
    """
    cluster = clusters.detect()
    cluster.build()
    cluster.up()
    images = image_store.provide(cluster, None if plugins is None else needed_images(targets.current(), plugins))
    kube = Kube(cluster.kubeconfig(), cluster.bin_dir / "kubectl")
    clock = progress.Clock()
    install_chart(kube, images)
    kube.apply(manifests.namespace(manifests.HUB_NAMESPACE), *manifests.hub(images["e2e"]))
    kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)
    kube.rolled_out("hub", manifests.HUB_NAMESPACE)
    progress.say("operator", "encoder-operator Available", clock.seconds())
    first, second = hub_revisions(kube)
    return Platform(cluster, kube, images, first, second)


def shared(folder: Path) -> Platform:
    """Bring up everything, unless another process did so that was given the same folder; return what there is.

    Args:
        folder: One for each run of a suite.
    """
    done = folder / "images.json"
    with exclusive(folder / "platform.lock", "bringing up the cluster", seconds=BRING_UP_SECONDS):
        if not done.exists():
            found = bring_up()
            done.write_text(json.dumps(dict(found.images)))
            return found
    cluster = clusters.detect()
    kube = Kube(cluster.kubeconfig(), cluster.bin_dir / "kubectl")
    return Platform(cluster, kube, json.loads(done.read_text()), *hub_revisions(kube))


def needed_images(all_targets: Iterable[Target], plugins: Collection[str]) -> list[Target]:
    """Return the images that a cluster without GPUs needs to serve models of some plugins, and those of operator and tests. Pure."""
    names = {"operator", targets.TESTS_ONLY}
    names |= {name for plugin in plugins for name in (f"engine-{plugin}-cpu", f"prep-{plugin}")}
    return [target for target in all_targets if target.name in names]


def install_chart(kube: Kube, images: Mapping[str, str], **more: object) -> None:
    """Install or upgrade the chart from the checkout with the images of this build, and with more values."""
    kube.apply(manifests.namespace(OPERATOR_NAMESPACE))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
        yaml.safe_dump(chart_values(images) | more, values)
        values.flush()
        helm = str(kube.kubectl.with_name("helm"))
        command = [helm, "upgrade", "--install", "encoder-operator", str(CHART), "--namespace", OPERATOR_NAMESPACE]
        done = subprocess.run(
            [*command, "--values", values.name], env=kube.environment(), capture_output=True, text=True, timeout=120
        )
    if done.returncode:
        raise SystemExit(f"helm upgrade --install failed: {done.stderr.strip()}")


def chart_values(images: Mapping[str, str]) -> Body:
    """Values that name each image of this build by its digest; stalls are noticed sooner than on a real network."""
    plugins = sorted(name.removeprefix("prep-") for name in images if name.startswith("prep-"))
    digest = {name: reference.split("@")[1] for name, reference in images.items()}
    return {
        "localImages": True,
        "image": {"digest": digest["operator"]},
        "engines": {"cpu": {p: {"digest": digest[f"engine-{p}-cpu"]} for p in plugins}},
        "preps": {p: {"digest": digest[f"prep-{p}"]} for p in plugins},
        # the node's two cores are for the models; the tests of leader election set more
        "replicas": 1,
        "settings": {
            # twice as long as a hub is silent that shares two cores with all the preps of two tests
            "prepStallSeconds": 40,
            # the preps of a test wait for each other, not for those of other tests, which they fit beside on two cores; the hub goes first
            "maxPreps": 8,
            "maxPrepsPerNamespace": 2,
            "prepResources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
        },
    }


def _hub(kube: Kube, path: str) -> Body:
    raw = kube.run("get", "--raw", f"/api/v1/namespaces/{manifests.HUB_NAMESPACE}/services/hub:8080/proxy{path}")
    found: Body = json.loads(raw)
    return found


def hub_revisions(kube: Kube) -> tuple[str, str]:
    """The two revisions of the hub's repository, the newest of its main branch first."""
    found = _hub(kube, "/api")["repositories"][manifests.REPOSITORY]
    return found["v1"], found["v2"]


def hub_requests(kube: Kube, repository: str) -> Body:
    """How often each route was requested for a repository; by a name of its own (`copy-…/x`), nobody else's requests count."""
    return {route: count for route, count in _hub(kube, "/_requests").items() if route.endswith(f" {repository}")}


def hub_sent(kube: Kube, repository: str) -> int:
    """How many bytes of a repository's files were sent to anybody."""
    return int(_hub(kube, "/_sent").get(repository, 0))


def hub_heal(kube: Kube, repository: str) -> None:
    """End the fault that a repository has by its name."""
    path = f"/api/v1/namespaces/{manifests.HUB_NAMESPACE}/services/hub:8080/proxy/_healed/{repository}"
    kube.run("create", "--raw", path, "-f", "-", stdin="{}")


@contextmanager
def upgraded(platform: Platform, **values: object) -> Iterator[None]:
    """The chart upgraded with more values while the block runs, and then back: each time a new operator."""
    install_chart(platform.kube, platform.images, **values)
    try:
        platform.kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)
        yield
    finally:
        install_chart(platform.kube, platform.images)
        platform.kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)


def operator_pods(kube: Kube) -> list[Body]:
    """The operator's pods, those that end left out."""
    pods = kube.all(("v1", "Pod"), OPERATOR_NAMESPACE, "app.kubernetes.io/name=encoder-operator")
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


@contextmanager
def operator_stopped(kube: Kube) -> Iterator[None]:
    """No operator in the cluster while the block runs."""
    meta = {"name": "encoder-operator", "namespace": OPERATOR_NAMESPACE}
    deployment: Body = {"apiVersion": DEPLOYMENT[0], "kind": DEPLOYMENT[1], "metadata": meta}
    kube.apply({**deployment, "spec": {"replicas": 0}})
    selector = "app.kubernetes.io/name=encoder-operator"
    wait_for("the operator gone", lambda: not kube.all(("v1", "Pod"), OPERATOR_NAMESPACE, selector), seconds=60)
    try:
        yield
    finally:
        # the number is nobody's again, and so the default: helm does not take it from someone else
        kube.apply(deployment)
        kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)
