"""A release installed from a registry: Helm gets the chart from there, the node pulls the operator by digest, and a model answers.

The images of engines stay those of the node: several gigabytes in a registry would show the same once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_node import configuration, image_registry, image_store, images, layouts, targets
from encoder_node.node import NodeCluster
from encoder_platform import install
from encoder_platform.chart import RELEASE, Helm
from encoder_platform.install import OPERATOR_NAMESPACE, Platform
from encoder_platform.kube import Body
from encoder_platform.space import Space
from encoder_release.build import Built
from encoder_release.plan import plan
from encoder_release.release import Published, checkout, now, publish

VERSION = targets.project_version((targets.ROOT / "pyproject.toml").read_text())
# as long as a node of two cores pulls 200 MB and starts the operator
SECONDS = 240


def flattened(platform: Platform, node: NodeCluster, folder: Path) -> Built:
    """The operator's image as one layer: the layers that the node has are no archives any more."""
    name, root, layer = image_store.normalized(platform.images["operator"]), folder / "root", folder / "layer.tar"
    ctr = f"{node.bin_dir / 'ctr'} --address {configuration.SOCKET} --namespace k8s.io images"
    root.mkdir()
    node.run(
        [
            "sh",
            "-ec",
            f"{ctr} mount {name} {root}; tar -C {root} --numeric-owner -cf {layer} .; {ctr} unmount --rm {root}",
        ]
    )
    layout = images.Places(node.settings.paths.cache).layout
    config = layouts.read_image(layout, name.partition("@")[2]).config.digest
    settings = json.loads(layouts.blob_path(layout, config).read_bytes())["config"]
    return Built(
        folder / "layout",
        {"operator": layouts.write_layout(folder / "layout", layer, settings.pop("Env"), settings)},
    )


def values_of_the_node(platform: Platform) -> Body:
    """The values of the suite, with the engines and the preparation that the node has."""
    values = install.chart_values(platform.images)
    for name, reference in platform.images.items():
        repository = {"repository": image_store.normalized(reference).partition("@")[0]}
        if name.startswith("prep-"):
            values["preps"][name.removeprefix("prep-")] |= repository
        elif name.startswith("engine-"):
            values["engines"]["cpu"][name.removeprefix("engine-").removesuffix("-cpu")] |= repository
    # both are in the chart of a release
    return {name: value for name, value in values.items() if name not in ("image", "localImages")}


@pytest.fixture
def released(platform: Platform, tmp_path: Path) -> Iterator[tuple[Published, Helm]]:
    node = platform.cluster
    if not isinstance(node, NodeCluster):
        pytest.skip("a node of kind has a loopback interface that this machine's folders are not behind")
    with image_registry.running(tmp_path) as server:
        port = int(server.host.rpartition(":")[2])
        release = plan(server.host, VERSION, VERSION, targets.current(), "operator")
        source = checkout("https://git.example.org/encoders", "")
        published = publish(release, flattened(platform, node, tmp_path), source, started=now())
        # the node has a loopback interface of its own: a second registry there, with the same folder
        with image_registry.running(tmp_path, port=port, around=node.command):
            yield published, Helm(platform.kube.kubectl.with_name("helm"), dict(platform.kube.environment()))
            install.install_chart(platform.kube, platform.images)
            platform.kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)


@pytest.mark.alone
def test_a_release_is_installed_from_a_registry_and_serves(
    released: tuple[Published, Helm], space: Space, tmp_path: Path
) -> None:
    published, helm = released
    kube, image = space.kube, published.images["operator"]
    repository = published.chart.partition("@")[0]
    helm.run(
        *("upgrade", "--install", RELEASE, repository, "--version", VERSION, "--plain-http"),
        *("--namespace", OPERATOR_NAMESPACE),
        values=values_of_the_node(space.platform),
    )
    kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE, seconds=SECONDS)
    (pod,) = install.operator_pods(kube)
    assert pod["spec"]["containers"][0]["image"] == image
    assert pod["status"]["containerStatuses"][0]["imageID"].endswith(image.partition("@")[2])
    pulled = json.loads(kube.run("-n", OPERATOR_NAMESPACE, "get", "events", "-o", "json"))["items"]
    assert any(f'Successfully pulled image "{image}"' in event["message"] for event in pulled)

    space.apply_model()
    model = space.wait_ready(seconds=SECONDS)
    assert model["status"]["parity"]["result"] == "Passed"
    answer = space.post({"model": "minilm", "data": {"texts": ["A man is eating."]}})
    assert (answer.status, len(answer.body["data"]["embeddings"][0])) == (200, 384)
