"""The release itself: images first, each with its documents and signature, then the chart that names them by digest."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from encoder_node import progress
from encoder_node.errors import CommandFailedError
from encoder_node.targets import ROOT
from encoder_release import chart, contents, labels, provenance
from encoder_release.build import Built
from encoder_release.plan import CHART, Image, Release, ReleaseError
from encoder_release.provenance import Source
from encoder_release.registry import Registry, package_chart, run

CHART_FOLDER = ROOT / "charts" / CHART


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What is in the registry.

    Attributes:
        images: Reference with a digest by target.
        chart: `oci://` reference of the chart with a digest.
    """

    images: Mapping[str, str]
    chart: str


def refuse_released(release: Release, registry: Registry) -> None:
    """Refuse a version whose chart is in the registry: the chart is pushed last, and is not changed afterwards.

    Raises:
        ReleaseError: The registry has this version.
    """
    try:
        digest = registry.resolve(f"{release.chart}:{release.version}")
    except CommandFailedError:
        return
    raise ReleaseError(f"{release.chart} has version {release.version} already ({digest}): release another version")


def publish(
    release: Release, built: Built, source: Source, *, started: str, maintainer: str = "", key: str = ""
) -> Published:
    """Push everything of a release; what fails leaves no chart of this version behind.

    Args:
        release: What is released.
        built: Its images.
        source: What they are built from.
        started: When the builds began, in UTC.
        maintainer: `NAME <ADDRESS>` for the chart; empty for none.
        key: Private key that cosign signs with, a file or a key management service; empty for no signatures.

    Raises:
        ReleaseError: The version has been released.
        NodeError: The registry refused something, or a tool failed.
    """
    registry = Registry(plain_http=release.on_this_machine)
    refuse_released(release, registry)
    built = labels.add(built, release, source)
    for image in release.images:
        clock = progress.Clock()
        _publish_image(release, image, built, source, registry, started=started, key=key)
        progress.say("release", release.reference(image), clock.seconds())
    clock = progress.Clock()
    images = {image.target.name: release.reference(image, built.digests[image.target.name]) for image in release.images}
    digest = _publish_chart(release, images, source, registry, started=started, maintainer=maintainer, key=key)
    progress.say("release", f"oci://{release.chart}:{release.version}", clock.seconds())
    return Published(images=images, chart=f"oci://{release.chart}@{digest}")


def _publish_image(
    release: Release, image: Image, built: Built, source: Source, registry: Registry, *, started: str, key: str
) -> None:
    digest, name = built.digests[image.target.name], f"{release.registry}/{image.repository}"
    registry.push_image(built.layout, digest, release.reference(image))
    parameters = {
        "dockerfile": image.target.dockerfile,
        "target": image.target.stage,
        "buildArguments": dict(image.target.arguments),
        "platforms": sorted(built.manifests(image)),
        "version": release.version,
    }
    _describe(name, digest, source, parameters, registry, started=started, key=key)
    for manifest in built.manifests(image).values():
        found = contents.of_image(built.layout, manifest)
        listed = contents.document(image.repository, manifest, release.version, found, source.time)
        registry.attach(f"{name}@{manifest}", contents.MEDIA_TYPE, "sbom.spdx.json", listed)
        if key:
            registry.attest(f"{name}@{manifest}", key, "spdxjson", listed)


def _publish_chart(
    release: Release,
    images: Mapping[str, str],
    source: Source,
    registry: Registry,
    *,
    started: str,
    maintainer: str,
    key: str,
) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / CHART
        shutil.copytree(CHART_FOLDER, folder)
        digests = {target: reference.partition("@")[2] for target, reference in images.items()}
        for file, text in (
            ("values.yaml", chart.values((folder / "values.yaml").read_text(), release.registry, digests)),
            (
                "Chart.yaml",
                chart.description((folder / "Chart.yaml").read_text(), release.version, source, maintainer, images),
            ),
        ):
            (folder / file).write_text(text)
        digest = registry.push_chart(package_chart(folder, Path(scratch)), f"{release.registry}/charts")
    _describe(
        release.chart, digest, source, {"chart": f"charts/{CHART}", "version": release.version}, registry,
        started=started, key=key,
    )  # fmt: skip
    return digest


def _describe(
    name: str,
    digest: str,
    source: Source,
    parameters: Mapping[str, object],
    registry: Registry,
    *,
    started: str,
    key: str,
) -> None:
    finished, reference = now(), f"{name}@{digest}"
    statement = provenance.statement(name, digest, source, parameters, started, finished)
    registry.attach(reference, provenance.MEDIA_TYPE, "provenance.intoto.json", statement)
    if key:
        registry.sign(reference, key)
        registry.attest(reference, key, "slsaprovenance1", statement["predicate"])


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def checkout(url: str, builder: str) -> Source:
    """Return what the checkout is.

    Args:
        url: Address of the repository; that of the remote `origin` if empty, where it is one of https.
        builder: URI of what runs the build; empty for a workstation.
    """
    if not url:
        try:
            origin = _git("remote", "get-url", "origin")
        except CommandFailedError:
            origin = ""
        url = origin.removesuffix(".git") if origin.startswith("https://") and "@" not in origin else ""
    time = datetime.fromtimestamp(int(_git("show", "--no-patch", "--format=%ct", "HEAD")), UTC)
    return Source(
        commit=_git("rev-parse", "HEAD"),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        url=url,
        changed=bool(_git("status", "--porcelain")),
        builder=builder or provenance.WORKSTATION,
    )


def _git(*arguments: str) -> str:
    return run(["git", *arguments], folder=ROOT).strip()


def summary(release: Release, published: Published, source: Source) -> str:
    """Return what is stored beside a release: JSON."""
    found = {
        "version": release.version,
        "commit": source.commit,
        "chart": published.chart,
        "images": dict(published.images),
    }
    return json.dumps(found, indent=2) + "\n"
