"""Builds a release's images into an OCI layout: by Docker where a daemon answers, else by the BuildKit of `e2e/node`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from encoder_node import images as image_store
from encoder_node import layouts, progress, rootfs
from encoder_node.cluster import docker_answers
from encoder_node.errors import CommandFailedError
from encoder_node.programs import Programs
from encoder_node.settings import load
from encoder_node.targets import ROOT, Target
from encoder_release.plan import Image, Release, ReleaseError

PLATFORMS: Mapping[str, Sequence[str]] = {"operator": ("linux/amd64", "linux/arm64")}
"""Platforms by target. vLLM's wheels and the locks of the original libraries are for amd64."""
AMD64 = "linux/amd64"


@dataclass(frozen=True, slots=True)
class Built:
    """Images in an OCI layout.

    Attributes:
        layout: The folder.
        digests: Digest of each image by target: of its manifest, or of the index where it has several platforms.
    """

    layout: Path
    digests: Mapping[str, str]

    def manifests(self, image: Image) -> dict[str, str]:
        """Return the digest of an image's manifest by platform."""
        return platform_manifests(self.layout, self.digests[image.target.name])


def platform_manifests(layout: Path, digest: str) -> dict[str, str]:
    """Return the manifests that an index lists, by their platforms; of a manifest, its own."""
    found = json.loads(layouts.blob_path(layout, digest).read_bytes())
    manifests = [entry["digest"] for entry in found["manifests"]] if "manifests" in found else [digest]
    return {_platform(layout, manifest): manifest for manifest in manifests}


def _platform(layout: Path, manifest: str) -> str:
    config = layouts.read_image(layout, manifest).config.digest
    found = json.loads(layouts.blob_path(layout, config).read_bytes())
    return f"{found['os']}/{found['architecture']}"


def build(release: Release, folder: Path) -> Built:
    """Build the images of a release.

    Args:
        release: What to build.
        folder: Where Docker's layout is made.

    Raises:
        ReleaseError: Without Docker, the images have bases that are made on this machine and may only go to a registry on it.
        NodeError: A build failed.
    """
    if docker_answers():
        return _by_docker(release, folder)
    if not release.on_this_machine:
        raise ReleaseError(
            "no Docker daemon answers: without one, images are built on bases that are made on this machine, "
            "and can only be pushed to a registry on it (localhost)"
        )
    return _by_buildkit(release)


def _by_buildkit(release: Release) -> Built:
    settings = load()
    programs = Programs(settings)
    programs.build()
    # a builder of its own: what is put on the node of this machine is no longer whole in the node's
    places = image_store.Places(settings.paths.cache / "release")
    targets = [image.target for image in release.images]
    digests = {}
    with image_store.builder(programs.folder, places, targets, ROOT) as daemon:
        for image in release.images:
            clock = progress.Clock()
            platforms = platforms_here(PLATFORMS.get(image.target.name, ()), rootfs.architectures())
            if platforms:
                both = rootfs.provide(places.bases, [platform.rpartition("/")[2] for platform in platforms])
                of_both = replace(daemon, bases={**daemon.bases, image_store.DEBIAN: both})
                digests[image.target.name] = of_both.build(image.target, places.layout, platforms=platforms)
            else:
                digests[image.target.name] = daemon.build(image.target, places.layout)
            progress.say("images", image.repository, clock.seconds())
    return Built(places.layout, digests)


def platforms_here(platforms: Sequence[str], architectures: Sequence[str]) -> Sequence[str]:
    """Return the platforms that an image is built for on this machine; none where only the machine's own is left.

    Args:
        platforms: What a release wants.
        architectures: Whose programs this machine runs.
    """
    found = [platform for platform in platforms if platform.rpartition("/")[2] in architectures]
    for platform in platforms:
        if platform not in found:
            progress.say(
                "images", f"without {platform}: this machine cannot run its programs; install qemu-user-static"
            )
    return found if len(found) > 1 else ()


def _by_docker(release: Release, folder: Path) -> Built:
    layout = folder / "layout"
    digests = {}
    for image in release.images:
        clock = progress.Clock()
        with tempfile.NamedTemporaryFile(suffix=".json") as metadata:
            command = docker_command(image.target, layout, Path(metadata.name))
            done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise CommandFailedError(command, done.returncode, done.stderr)
            digests[image.target.name] = json.loads(Path(metadata.name).read_text())["containerimage.digest"]
        progress.say("images", image.repository, clock.seconds())
    return Built(layout, digests)


def wheel(folder: Path) -> Path:
    """Build the Python package, which has the client, into a folder, and return the wheel.

    Raises:
        CommandFailedError: The build failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = ["uv", "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CommandFailedError(command, done.returncode, done.stderr)
    (found,) = folder.glob("*.whl")
    return found


def docker_command(target: Target, layout: Path, metadata: Path) -> Sequence[str]:
    """Return the command that builds an image into a layout.

    What BuildKit would attach inside of the image's index is left out: it is attached as referrers, which signing tools find too.
    """
    arguments = [option for name, value in target.arguments.items() for option in ("--build-arg", f"{name}={value}")]
    return [
        *("docker", "buildx", "build", "--file", target.dockerfile, "--target", target.stage, *arguments),
        *("--platform", ",".join(PLATFORMS.get(target.name, (AMD64,))), "--provenance=false", "--sbom=false"),
        *("--metadata-file", str(metadata), "--output", f"type=oci,tar=false,dest={layout}", "."),
    ]
