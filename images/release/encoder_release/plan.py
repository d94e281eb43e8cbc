"""What a release consists of and what everything in it is called. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from encoder_node import targets
from encoder_node.targets import Target

CHART = "encoder-operator"
# a host with an optional port, or a host and a path; upper case is not allowed in paths of registries
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?")


class ReleaseError(Exception):
    """A release cannot be made; the message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of a release.

    Attributes:
        target: How it is built.
        repository: Its name without registry and tag, as in the chart's defaults.
        tag: Its tag.
    """

    target: Target
    repository: str
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version in a registry.

    Attributes:
        registry: Host and path, without a scheme and without a slash at the end.
        version: Semantic version of chart, operator and images.
        images: What is released.
    """

    registry: str
    version: str
    images: tuple[Image, ...]

    @property
    def on_this_machine(self) -> bool:
        """Whether the registry listens on the loopback interface: plain HTTP, and nobody else can pull from it."""
        return is_loopback(self.registry)

    @property
    def chart(self) -> str:
        """Repository of the chart, which Helm names `oci://` and this."""
        return f"{self.registry}/charts/{CHART}"

    def reference(self, image: Image, digest: str | None = None) -> str:
        """Return an image's reference: by its tag, or by a digest."""
        name = f"{self.registry}/{image.repository}"
        return f"{name}@{digest}" if digest else f"{name}:{image.tag}"


def plan(registry: str, version: str, project_version: str, all_targets: Iterable[Target], only: str = "") -> Release:
    """Return the release of a version.

    Args:
        registry: Where it goes.
        version: Its version: the project's, or a prerelease of it.
        project_version: Version in pyproject.toml, which is also in the images.
        all_targets: Every image that can be built.
        only: Names of targets, separated by spaces or commas; all but the tests' own if empty.

    Raises:
        ReleaseError: The registry or the version is invalid, or a target is unknown.
    """
    registry = registry.removesuffix("/")
    if not registry:
        raise ReleaseError("REGISTRY is empty: set it to a registry and a path that you can push to")
    if "://" in registry or not _REGISTRY.fullmatch(registry):
        raise ReleaseError(f"REGISTRY {registry!r} is invalid: expected HOST[:PORT][/PATH] without a scheme")
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION {version!r} is invalid: expected a semantic version such as {project_version}")
    if version != project_version and not version.startswith(f"{project_version}-"):
        raise ReleaseError(
            f"VERSION is {version}, but pyproject.toml has {project_version}: use that version or a prerelease of it"
        )
    found = {target.name: target for target in all_targets if target.name != targets.TESTS_ONLY}
    names = re.split(r"[\s,]+", only.strip()) if only.strip() else list(found)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ReleaseError(f"ONLY has an unknown image {unknown[0]!r}: the images are {', '.join(found)}")
    images = tuple(_image(found[name], version, project_version) for name in dict.fromkeys(names))
    return Release(registry=registry, version=version, images=images)


def _image(target: Target, version: str, project_version: str) -> Image:
    repository, _, tag = target.reference.partition(":")
    # the tag of an engine is the version and the accelerator
    return Image(target=target, repository=repository, tag=version + tag.removeprefix(project_version))


def is_loopback(registry: str) -> bool:
    """Return whether the host of a registry is this machine's loopback interface."""
    host = registry.partition("/")[0].rpartition(":")[0] or registry.partition("/")[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
