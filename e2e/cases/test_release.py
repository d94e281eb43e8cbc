"""A new user's first hour, by docs/get-started.md: install from a registry, apply, call from Python, upgrade, remove.

The page's blocks are typed into a shell. Helm gets the chart of a release from a registry, and the node pulls images by digest from there: the
operator's in CI; the engine's and the preparation's, several gigabytes, with `-m soak`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from encoder_node import configuration, image_registry, image_store, images, layouts, progress, targets
from encoder_node.free_port import free_port
from encoder_node.node import NodeCluster
from encoder_node.waiting import wait_for
from encoder_platform import install, manifests
from encoder_platform.chart import RELEASE, Helm
from encoder_platform.install import OPERATOR_NAMESPACE, Platform
from encoder_platform.kube import DEPLOYMENT, POD, Body, Kube, condition
from encoder_platform.space import Space
from encoder_platform.terminal import Block, Terminal, blocks
from encoder_release import build
from encoder_release.build import Built
from encoder_release.plan import plan
from encoder_release.release import Published, checkout, now, publish

PAGE = targets.ROOT / "docs" / "get-started.md"
NAMESPACE = "search"
PLUGIN = "sentence_transformer"
VERSION = targets.project_version((targets.ROOT / "pyproject.toml").read_text())
OPERATOR = f"app.kubernetes.io/name={RELEASE}"
# what the page installs first, so that there is something to upgrade from
CANDIDATE = f"{VERSION}-rc.1"
# what the page upgrades to
NEXT = "0.2.1"
OPERATOR_ONLY = ("operator",)
ALL_IMAGES = ("operator", f"engine-{PLUGIN}-cpu", f"prep-{PLUGIN}")
# a node of two cores pulls gigabytes, beside other work
BLOCK_SECONDS = 1500


# by way of the third descriptor, the archive is hashed before it is compressed
FLATTEN = """
{ctr} mount {name} {root}
{{ tar -C {root} --numeric-owner -c . | tee /dev/fd/3 | gzip -1 > {layer}; }} 3>&1 | sha256sum > {layer}.sum
{ctr} unmount --rm {root}
"""

# also the names that containerd makes of the images' ids: with one of them gigabytes would stay
FORGET = "{ctr} rm --sync $({ctr} ls | awk '/{digests}/ {{print $1}}')"


def ctr(node: NodeCluster) -> str:
    """The command of containerd's own client for the images of pods."""
    return f"{node.bin_dir / 'ctr'} --address {configuration.SOCKET} --namespace k8s.io images"


def flattened(platform: Platform, node: NodeCluster, folder: Path, names: tuple[str, ...]) -> Built:
    """Images of the node, each as one layer: the layers that the node has are no archives any more."""
    layer, digests = folder / "layer.tar.gz", {}
    kept = images.Places(node.settings.paths.cache).layout
    for name in names:
        clock, reference = progress.Clock(), image_store.normalized(platform.images[name])
        # containerd may remember a folder for a while after its image was unmounted
        root = folder / f"root-{name}"
        root.mkdir()
        script = FLATTEN.format(ctr=ctr(node), name=reference, root=root, layer=layer)
        node.run(["bash", "-euo", "pipefail", "-c", script])
        diff_id = f"sha256:{layer.with_name(f'{layer.name}.sum').read_text().split()[0]}"
        config = layouts.read_image(kept, reference.partition("@")[2]).config.digest
        settings = json.loads(layouts.blob_path(kept, config).read_bytes())["config"]
        digests[name] = layouts.write_layout(folder / "layout", layer, settings.pop("Env"), settings, diff_id=diff_id)
        progress.say("images", f"{name} as one layer", clock.seconds())
    return Built(folder / "layout", digests)


def values_of_the_node(platform: Platform, released: tuple[str, ...]) -> Body:
    """What the page's reader has and the node has not: a way to the Hugging Face Hub, and time; and images that are not in the release."""
    values = install.chart_values(platform.images)
    for name, reference in platform.images.items():
        repository = {"repository": image_store.normalized(reference).partition("@")[0]}
        if name.startswith("prep-"):
            values["preps"][name.removeprefix("prep-")] |= repository
        elif name.startswith("engine-"):
            values["engines"]["cpu"][name.removeprefix("engine-").removesuffix("-cpu")] |= repository
    # these are in the chart of a release
    for name in ("image", "localImages", *(("engines", "preps") if len(released) > 1 else ())):
        del values[name]
    return values | {"defaults": {"hubEndpoint": manifests.HUB_ENDPOINT}}


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """A user with a shell in an empty folder, whose cluster has no operator yet.

    Attributes:
        terminal: The shell; `kubectl` and `helm` find the cluster.
        candidate: What is in the registry of the version that the page installs.
        published: What is there of the one that it upgrades to: other images, since each says its version.
        images: Names of the images that are in the registry.
        words: What the page says, and what it is here.
    """

    terminal: Terminal
    candidate: Published
    published: Published
    images: tuple[str, ...]
    words: Mapping[str, str]

    def follow(self, block: Block, folder: Path) -> str:
        """Save a file, or run commands; return what was printed."""
        content = block.content
        for words, here in self.words.items():
            content = content.replace(words, here)
        if block.file is not None:
            (folder / block.file).write_text(content)
            return ""
        clock = progress.Clock()
        printed = self.terminal.run(content, seconds=BLOCK_SECONDS)
        progress.say("page", content.partition("\n")[0], clock.seconds())
        return printed


def programs(folder: Path, kube: Kube, values: Body) -> dict[str, str]:
    """Make the user's environment: kubectl, and a Helm that knows that the registry has no TLS and what the node's values are."""
    (folder / "bin").mkdir()
    (folder / "values.json").write_text(json.dumps(values))
    (folder / "bin" / "kubectl").symlink_to(kube.kubectl)
    helm, more = shlex.quote(str(kube.kubectl.with_name("helm"))), f"--plain-http --values {folder / 'values.json'}"
    script = f'case "$*" in *oci://*) exec {helm} "$@" {more};; *) exec {helm} "$@";; esac'
    (folder / "bin" / "helm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "helm").chmod(0o755)
    own = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST")
    inherited = {name: value for name, value in kube.environment().items() if name not in own}
    return {**inherited, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def space(platform: Platform) -> Space:
    """The namespace that the page makes."""
    return Space(NAMESPACE, platform.kube, platform.hub_revision, platform=platform)


@pytest.fixture(
    params=[
        pytest.param(OPERATOR_ONLY, id="operator"),
        pytest.param(ALL_IMAGES, id="all-images", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ]
)
def visitor(platform: Platform, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    node, kube, names = platform.cluster, platform.kube, request.param
    if not isinstance(node, NodeCluster):
        pytest.skip("a node of kind has a loopback interface that this machine's folders are not behind")
    # that of an earlier run on the same cluster
    namespace = ("v1", "Namespace"), NAMESPACE
    kube.delete(*namespace)
    wait_for("the namespace is free", lambda: kube.get(*namespace) is None, seconds=180)
    home = tmp_path / "home"
    home.mkdir()
    with image_registry.running(tmp_path) as server:
        port = int(server.host.rpartition(":")[2])
        releases = [
            plan(server.host, version, VERSION, targets.current(), ",".join(names)) for version in (CANDIDATE, VERSION)
        ]
        built = flattened(platform, node, tmp_path, names)
        source = checkout("https://git.example.org/encoders", "")
        candidate, published = (publish(release, built, source, started=now()) for release in releases)
        # gigabytes, which the registry has now
        shutil.rmtree(built.layout)
        build.wheel(home / "dist" / "release")
        words = {
            "images.example.org/team": server.host,
            f"--version {VERSION}": f"--version {CANDIDATE}",
            f"--version {NEXT}": f"--version {VERSION}",
            "sentence-transformers/": "copy-start/",
            "c9745ed1d9f207416be6d2e6f8de32d1f16199bf": platform.hub_revision,
            "8080": str(free_port()),
        }
        Helm(kube.kubectl.with_name("helm"), dict(kube.environment())).run(
            "uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait"
        )
        try:
            environment = programs(tmp_path, kube, values_of_the_node(platform, names))
            # the node has a loopback interface of its own: a second registry there, with the same folder
            with (
                image_registry.running(tmp_path, port=port, around=node.command),
                Terminal(home, environment) as terminal,
            ):
                yield Visitor(terminal=terminal, candidate=candidate, published=published, images=names, words=words)
        finally:
            kube.delete(*namespace)
            install.install_chart(kube, platform.images)
            kube.rolled_out("encoder-operator", OPERATOR_NAMESPACE)
            references = [*candidate.images.values(), *published.images.values()]
            digests = "|".join(reference.partition("@")[2] for reference in references)
            node.run(["bash", "-euo", "pipefail", "-c", FORGET.format(ctr=ctr(node), digests=digests)])


def pulled(kube: Kube, namespace: str, selector: str, image: str) -> bool:
    """Whether the pods that a selector finds run an image by its digest, and the node pulled it."""
    containers = [
        (pod["spec"]["containers"][0]["image"], status["imageID"].partition("@")[2])
        for pod in kube.all(POD, namespace, selector)
        # one that has just been made has none
        for status in (pod["status"].get("containerStatuses") or [{"imageID": ""}])[:1]
    ]
    events = json.loads(kube.run("-n", namespace, "get", "events", "-o", "json"))["items"]
    return set(containers) == {(image, image.partition("@")[2])} and any(
        f'Successfully pulled image "{image}"' in event["message"] for event in events
    )


def replaced(visitor: Visitor, kube: Kube) -> None:
    """Wait until only the operator of the second version runs, from an image of its own."""
    operator = visitor.published.images["operator"]
    assert operator != visitor.candidate.images["operator"]
    wait_for("only the new operator runs", lambda: pulled(kube, OPERATOR_NAMESPACE, OPERATOR, operator), seconds=120)


def adopt(visitor: Visitor, space: Space, answer: str) -> None:
    """Let the model have the new engine's image, as docs/operations.md says, and call the pod that runs it."""
    model, engine = "minilm", visitor.published.images[f"engine-{PLUGIN}-cpu"]
    wait_for(
        "the model says that there are newer images",
        lambda: condition(space.model(), "UpdateAvailable")["status"] == "True",
        seconds=120,
    )
    space.kube.run("-n", NAMESPACE, "annotate", "em", model, "encoders.dev/update=1", "--overwrite")
    wait_for(
        "the model is served by the new image alone",
        lambda: pulled(space.kube, NAMESPACE, "encoders.dev/component=serving", engine),
        seconds=600,
    )
    wait_for("the new image is verified", lambda: space.model()["status"]["parity"]["result"] == "Passed", seconds=300)
    assert condition(space.model(), "UpdateAvailable")["status"] == "False"
    # kubectl forwards to the pod that is gone; what the page ends is its first job
    port = visitor.words["8080"]
    visitor.terminal.run(
        "kill %1; wait %1 || true\n"
        f"kubectl -n {NAMESPACE} port-forward service/{model} {port}:80 > /dev/null &\n"
        "until venv/bin/python answer.py > /dev/null 2>&1; do sleep 1; done",
        seconds=180,
    )
    assert visitor.terminal.run("venv/bin/python answer.py", seconds=120).endswith(answer)


def ageless(text: str) -> list[list[str]]:
    """The words of what was printed, without the age of a model and the spaces between columns, which depend on it."""
    return [[word for word in line.split() if not re.fullmatch(r"(\d+[smh])+", word)] for line in text.splitlines()]


@pytest.mark.alone
def test_a_new_user_gets_an_answer_by_the_page_alone(visitor: Visitor, space: Space, tmp_path: Path) -> None:
    kube, sections = space.kube, {}
    printed = ""
    for block in blocks(PAGE.read_text()):
        if block.language == "text":
            # what the page shows is what was printed
            assert ageless(printed) == ageless(block.content)
            continue
        printed = visitor.follow(block, tmp_path / "home")
        sections[block.section] = printed
        if block.section == "Install the operator":
            assert pulled(kube, OPERATOR_NAMESPACE, OPERATOR, visitor.candidate.images["operator"])
        elif "get em" in block.content:
            assert space.model()["status"]["parity"]["result"] == "Passed"
            serving = {pod["metadata"]["uid"] for pod in space.pods()}
            for name in visitor.images[1:]:
                component = "prep" if name.startswith("prep") else "serving"
                selector = f"encoders.dev/component={component}"
                assert pulled(kube, NAMESPACE, selector, visitor.candidate.images[name])
        elif block.section == "Upgrade the operator":
            # the same answer, from the pod that was there before
            assert printed.endswith(sections["Call it from Python"])
            assert {pod["metadata"]["uid"] for pod in space.pods()} == serving
            (chart,) = json.loads(kube.run("-n", OPERATOR_NAMESPACE, "get", "deploy", "-o", "json"))["items"]
            assert chart["metadata"]["labels"]["helm.sh/chart"] == f"{RELEASE}-{VERSION}"
            replaced(visitor, kube)
            if len(visitor.images) > 1:
                adopt(visitor, space, sections["Call it from Python"])
    assert list(sections)[-1] == "Remove everything"
    assert kube.get(DEPLOYMENT, "encoder-operator", OPERATOR_NAMESPACE) is None
    # Kubernetes needs a minute for the rest
    namespace = kube.get(("v1", "Namespace"), NAMESPACE)
    assert namespace is None or namespace["status"]["phase"] == "Terminating"
    # what a namespace of another user has is not this user's to delete
    assert kube.get(("apiextensions.k8s.io/v1", "CustomResourceDefinition"), "encodermodels.encoders.dev")
