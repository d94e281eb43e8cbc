"""The images of the catalogue, built and put on a cluster: `python -m encoder_node.images [TARGET...] [--load]`.

On our own node BuildKit builds them, and layers reach the node without a registry and without a second copy; where
Docker answers, Docker builds the same Dockerfiles and kind gets what `docker save` says.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from encoder_node import buildkit, image_store, layouts, linking, progress, rootfs, targets
from encoder_node import cluster as clusters
from encoder_node import settings as settings_module
from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.node import NodeCluster
from encoder_node.programs import Programs
from encoder_node.settings import Settings
from encoder_node.targets import Target
from encoder_node.waiting import exclusive

DEBIAN = "debian:bookworm-slim"


@dataclass(frozen=True, slots=True)
class Places:
    """Where images are kept."""

    cache: Path

    @property
    def layout(self) -> Path:
        """All images that BuildKit has built."""
        return self.cache / "images" / "layout"

    @property
    def bases(self) -> Path:
        """What FROM lines name."""
        return self.cache / "images" / "bases"

    @property
    def buildkit(self) -> Path:
        """BuildKit's state."""
        return self.cache / "buildkit"


def pinned(reference: str, digest: str) -> str:
    """Returns `repository@digest`, by which a pod names exactly this image."""
    return image_store.by_digest(reference, digest)


def build(chosen: Iterable[Target], settings: Settings, *, context: Path = targets.ROOT) -> dict[str, str]:
    """Builds images with BuildKit and returns the manifest digest of each, by the target's name.

    Raises:
        NodeError: A base could not be made, or a build failed.
    """
    places, programs = Places(settings.paths.cache), Programs(settings)
    programs.build()
    wanted = list(chosen)
    digests: dict[str, str] = {}
    kept: set[str] = set()
    with builder(programs.folder, places, wanted, context) as daemon:
        for target in wanted:
            clock = progress.Clock()
            digests[target.name] = daemon.build(target, places.layout, context=context)
            image = layouts.read_image(places.layout, digests[target.name])
            kept.update(layer.digest for layer in image.layers)
            progress.say("images", f"{target.reference} ({image.size / 1e6:.0f} MB)", clock.seconds())
        buildkit.sweep(places.layout, kept)
    return digests


@contextmanager
def builder(programs: Path, places: Places, wanted: Sequence[Target], context: Path) -> Iterator[buildkit.BuildKit]:
    """Runs BuildKit with the bases that the targets need."""
    bases = {DEBIAN: rootfs.provide(places.bases)}
    if any(target.stage == "cuda" for target in wanted):
        name, version = standin_for((context / "images/engine/Dockerfile").read_text())
        with buildkit.running(programs, places.buildkit, bases) as daemon:
            bases = {**bases, name: standin(daemon, places, version)}
    with buildkit.running(programs, places.buildkit, bases) as daemon:
        yield daemon


def standin_for(dockerfile: str) -> tuple[str, str]:
    """Returns the name of vLLM's image in a FROM line, and the version in its tag."""
    for line in dockerfile.splitlines():
        words = line.split()
        if words[:1] == ["FROM"] and words[1].startswith("vllm/"):
            return words[1], words[1].rpartition(":")[2].removeprefix("v")
    raise NodeError("no FROM line names vLLM's image")


def standin(daemon: buildkit.BuildKit, places: Places, version: str) -> rootfs.Base:
    """Builds what takes the place of vLLM's own image."""
    target = Target(
        name="standin",
        reference=f"{targets.PREFIX}/standin:{version}",
        dockerfile="e2e/node/standin/Dockerfile",
        stage="standin",
        arguments={"VERSION": version},
    )
    return rootfs.Base(places.layout, daemon.build(target, places.layout))


def load(cluster: NodeCluster, chosen: Iterable[Target], digests: Mapping[str, str], places: Places) -> None:
    """Puts built images on our own node; nothing is sent that it has.

    Raises:
        NodeError: containerd refused one.
    """
    present = cluster.images()
    links = linking.Links(
        buildkit.BuildKit(Path(), places.buildkit).snapshots, places.layout, places.buildkit / "layers.json"
    )
    for target in chosen:
        digest, name = digests[target.name], image_store.normalized(target.reference)
        if present.get(name) == digest == present.get(pinned(name, digest)):
            continue
        clock = progress.Clock()
        image = layouts.read_image(places.layout, digest)
        linked = _link_layers(cluster, image, links)
        needed = layouts.needed_layers(image, cluster.unpacked_chains())
        with _archive(places.layout, name, image, needed) as stream:
            cluster.import_image(stream)
        for layer, chain in linked.items():
            links.release(cluster.store, chain)
            # a small one stays whole: above another layer it is another chain, which the node has not
            if layer.size >= linking.WORTHWHILE:
                layouts.hollow(layouts.blob_path(places.layout, layer.digest))
        progress.say("images", f"{target.reference} on the node", clock.seconds())


def _link_layers(cluster: NodeCluster, image: layouts.Image, links: linking.Links) -> dict[layouts.Descriptor, str]:
    """Links what can be linked, from the lowest missing layer to the last that is large or hollow; returns chain id by layer."""
    missing = len(layouts.needed_layers(image, cluster.unpacked_chains()))
    first = len(image.layers) - missing
    unsent = [number for number in range(first, len(image.layers)) if _is_linked(image.layers[number], links.layout)]
    linked: dict[layouts.Descriptor, str] = {}
    for number in range(first, unsent[-1] + 1 if unsent else first):
        layer, chain = image.layers[number], image.chains[number]
        if not links.link(cluster.store, layer, chain, image.chains[number - 1] if number else ""):
            break
        linked[layer] = chain
    return linked


def _is_linked(layer: layouts.Descriptor, layout: Path) -> bool:
    """Whether a layer is not sent as an archive: it is too large, or there is none any more."""
    return layer.size >= linking.WORTHWHILE or layouts.is_hollow(layouts.blob_path(layout, layer.digest))


@contextmanager
def _archive(
    layout: Path, name: str, image: layouts.Image, layers: Sequence[layouts.Descriptor]
) -> Iterator[IO[bytes]]:
    """Yields a stream that an archive is written to while it is read."""
    reading, writing = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with os.fdopen(writing, "wb") as out:
                layouts.write_archive(layout, name, image, layers, out)
        except (OSError, NodeError) as error:
            failure.append(error)

    thread = threading.Thread(target=write, name="image archive")
    refused: NodeError | None = None
    with os.fdopen(reading, "rb") as stream:
        thread.start()
        try:
            yield stream
        except NodeError as error:
            refused = error
        finally:
            stream.close()
            thread.join()
    if failure and not isinstance(failure[0], BrokenPipeError):
        # the reader of half an archive can only report that it is invalid
        raise NodeError(f"the archive of {name} could not be written: {failure[0]}") from failure[0]
    if refused is not None:
        raise refused


def provide(
    cluster: clusters.Cluster, chosen: Sequence[Target] | None = None, *, context: Path = targets.ROOT
) -> dict[str, str]:
    """Builds images and puts them on a cluster; returns what pods name them by, by target.

    Args:
        cluster: The node of ours, or kind.
        chosen: The images; without it, all that a node without GPUs can use.
        context: The checkout to build.

    Raises:
        NodeError: A build or the cluster failed.
    """
    wanted = list(targets.for_cpu_nodes(targets.current()) if chosen is None else chosen)
    if isinstance(cluster, NodeCluster):
        places = Places(cluster.settings.paths.cache)
        digests = build(wanted, cluster.settings, context=context)
        with exclusive(places.layout.with_name("lock"), "putting images on the node", seconds=600):
            load(cluster, wanted, digests, places)
    else:
        digests = _provide_by_docker(cluster, wanted, context)
    return {target.name: pinned(target.reference, digests[target.name]) for target in wanted}


def build_by_docker(chosen: Sequence[Target], context: Path) -> None:
    """Builds images where Docker answers.

    Raises:
        CommandFailedError: A build failed.
    """
    for target in chosen:
        command = docker_command(target)
        done = subprocess.run(command, cwd=context, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise CommandFailedError(command, done.returncode, done.stderr)


def _provide_by_docker(cluster: clusters.Cluster, wanted: Sequence[Target], context: Path) -> dict[str, str]:
    for target in wanted:
        clock = progress.Clock()
        build_by_docker([target], context)
        with tempfile.TemporaryFile() as archive:
            subprocess.run(["docker", "save", target.reference], stdout=archive, check=True)
            archive.seek(0)
            cluster.import_image(archive)
        progress.say("images", f"{target.reference} on the node", clock.seconds())
    present = cluster.images()
    return {target.name: present[image_store.normalized(target.reference)] for target in wanted}


def docker_command(target: Target) -> list[str]:
    """Returns the command by which a user with Docker builds an image."""
    arguments = [option for name, value in target.arguments.items() for option in ("--build-arg", f"{name}={value}")]
    return [
        "docker",
        "build",
        "--quiet",
        "-f",
        target.dockerfile,
        "--target",
        target.stage,
        *arguments,
        "-t",
        target.reference,
        ".",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds images, all that a node without GPUs can use unless some are named, and prints what pods name them by."""
    every = {target.name: target for target in targets.current()}
    parser = argparse.ArgumentParser(prog="python -m encoder_node.images", description=main.__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(every)}")
    parser.add_argument("--load", action="store_true", help="put them on the cluster, too")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.targets if name not in every]
    if unknown:
        parser.error(f"no image is called {unknown[0]}; there is: {', '.join(every)}")
    chosen = [every[name] for name in options.targets] or targets.for_cpu_nodes(every.values())
    settings = settings_module.load()
    try:
        cluster = clusters.detect(settings)
        if options.load:
            references = provide(cluster, chosen)
        elif not isinstance(cluster, NodeCluster):
            # what pods name them by is known when kind has them
            build_by_docker(chosen, targets.ROOT)
            references = {target.name: target.reference for target in chosen}
        else:
            digests = build(chosen, settings)
            references = {target.name: pinned(target.reference, digests[target.name]) for target in chosen}
    except NodeError as error:
        print(f"encoder_node: {error.explain()}", file=sys.stderr)
        return 1
    for name, reference in references.items():
        print(f"{name} {reference}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
