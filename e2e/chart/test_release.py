"""A release in a real registry: images and chart by digest, what describes them, signatures, and what is refused.

The image is a small one that is made here; `make release` builds it with BuildKit or Docker, which other tests cover.
"""

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from encoder_node import extra_programs, image_registry, layouts, targets
from encoder_node.errors import CommandFailedError
from encoder_node.image_registry import ImageRegistry
from encoder_platform import chart
from encoder_platform.chart import Helm
from encoder_release import contents, provenance
from encoder_release.build import Built
from encoder_release.plan import Release, ReleaseError, plan
from encoder_release.provenance import Source
from encoder_release.registry import Registry
from encoder_release.release import Published, now, publish

VERSION = targets.project_version((targets.ROOT / "pyproject.toml").read_text())
SOURCE = Source(commit="1" * 40, time="2026-01-02T03:04:05Z", url="https://git.example.org/encoders")
METADATA = "opt/venv/lib/python3.11/site-packages/numpy-2.0.dist-info/METADATA"


@dataclass(frozen=True)
class Case:
    """A release that was published, and the key that verifies it."""

    server: ImageRegistry
    release: Release
    built: Built
    published: Published
    folder: Path

    @property
    def image(self) -> str:
        return self.published.images["operator"]

    @property
    def digest(self) -> str:
        return self.image.partition("@")[2]

    @property
    def chart(self) -> str:
        return self.published.chart.removeprefix("oci://")


def small_image(folder: Path) -> Built:
    text = b"Name: numpy\nVersion: 2.0\n"
    with tarfile.open(folder / "layer.tar", "w") as archive:
        entry = tarfile.TarInfo(METADATA)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    layout = folder / "layout"
    return Built(layout, {"operator": layouts.write_layout(layout, folder / "layer.tar", [])})


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("release")
    built = small_image(folder)
    with pytest.MonkeyPatch.context() as patch, image_registry.running(folder / "registry", credentials=True) as server:
        patch.setenv("COSIGN_PASSWORD", "of-a-test")
        # not the user's credentials
        patch.setenv("DOCKER_CONFIG", str(folder))
        login = [str(extra_programs.program("oras")), "login", "--plain-http", "--username", image_registry.USER]
        subprocess.run(
            [*login, "--password-stdin", server.host],
            input=image_registry.PASSWORD,
            text=True,
            check=True,
            capture_output=True,
        )
        subprocess.run(
            [extra_programs.program("cosign"), "generate-key-pair"], cwd=folder, check=True, capture_output=True
        )
        wanted = plan(f"{server.host}/team", VERSION, VERSION, targets.current(), "operator")
        published = publish(
            wanted,
            built,
            SOURCE,
            started="2026-01-02T03:05:05Z",
            maintainer="A Name <a@example.org>",
            key=str(folder / "cosign.key"),
        )
        yield Case(server, wanted, built, published, folder)


@pytest.fixture
def helm(case: Case, either_helm: Helm) -> Helm:
    """Helm with the credentials of this release's registry."""
    return replace(either_helm, environment=dict(os.environ))


REGISTRY = Registry(plain_http=True)


def test_values_of_the_chart_name_the_image_by_its_digest(case: Case, helm: Helm) -> None:
    where = (f"oci://{case.release.chart}", "--version", VERSION, "--plain-http")
    objects = list(yaml.safe_load_all(helm.run("template", "x", *where, "--kube-version", "1.36.3")))
    (deployment,) = [body for body in objects if body and body["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == case.image == f"{case.server.host}/team/encoder-operator/operator@{case.digest}"
    found = yaml.safe_load(helm.run("show", "chart", *where))
    assert (found["version"], found["home"]) == (VERSION, SOURCE.url)
    assert found["annotations"]["org.opencontainers.image.revision"] == SOURCE.commit


def test_the_image_says_what_it_is(case: Case) -> None:
    image = layouts.read_image(case.built.layout, case.digest)
    settings = json.loads(layouts.blob_path(case.built.layout, image.config.digest).read_bytes())["config"]
    # what it was built with stays
    assert settings["Cmd"] == ["bash"]
    assert settings["Labels"] == {
        f"org.opencontainers.image.{name}": value
        for name, value in {
            "title": "encoder-operator/operator",
            "version": VERSION,
            "revision": SOURCE.commit,
            "created": SOURCE.time,
            "licenses": "Apache-2.0",
            "source": SOURCE.url,
        }.items()
    }


def test_image_and_chart_are_described_and_signed(case: Case) -> None:
    assert REGISTRY.resolve(f"{case.server.host}/team/encoder-operator/operator:{VERSION}") == case.digest
    found = {entry["artifactType"]: entry["digest"] for entry in REGISTRY.referrers(case.image)}
    repository = case.image.partition("@")[0]
    listed = REGISTRY.attached(repository, found[contents.MEDIA_TYPE])
    assert [package["name"] for package in listed["packages"]] == ["operator", "numpy"]
    statement = REGISTRY.attached(repository, found[provenance.MEDIA_TYPE])
    assert statement["subject"][0]["digest"] == {"sha256": case.digest.removeprefix("sha256:")}
    assert provenance.MEDIA_TYPE in {entry["artifactType"] for entry in REGISTRY.referrers(case.chart)}
    key = str(case.folder / "cosign.pub")
    for reference in (case.image, case.chart):
        REGISTRY.verify(reference, key)
        REGISTRY.verify(reference, key, kind="slsaprovenance1")
    REGISTRY.verify(case.image, key, kind="spdxjson")


def test_the_signature_of_another_key_and_an_image_without_one_are_refused(case: Case, tmp_path: Path) -> None:
    subprocess.run(
        [extra_programs.program("cosign"), "generate-key-pair"], cwd=tmp_path, check=True, capture_output=True
    )
    with pytest.raises(CommandFailedError):
        REGISTRY.verify(case.image, str(tmp_path / "cosign.pub"))
    other = f"{case.server.host}/team/unsigned:1"
    REGISTRY.push_image(case.built.layout, case.digest, other)
    with pytest.raises(CommandFailedError, match="no signatures"):
        REGISTRY.verify(f"{other.removesuffix(':1')}@{case.digest}", str(case.folder / "cosign.pub"))


def test_a_registry_that_does_not_know_the_user_gets_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    other = plan(f"{case.server.host}/another", VERSION, VERSION, targets.current(), "operator")
    with pytest.raises(CommandFailedError, match=r"basic credential not found|401"):
        publish(other, case.built, SOURCE, started=now())
    assert not (case.server.storage / "docker/registry/v2/repositories/another").exists()


def test_a_version_that_is_released_is_not_released_again(case: Case) -> None:
    with pytest.raises(ReleaseError, match=f"has version {VERSION} already"):
        publish(case.release, case.built, SOURCE, started=now())


@contextmanager
def changed(blob: Path) -> Iterator[None]:
    """One bit of a blob is another one while the block lasts."""
    content = blob.read_bytes()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    blob.write_bytes(flipped)
    try:
        yield
    finally:
        blob.write_bytes(content)


def test_changed_content_is_refused(case: Case, helm: Helm, tmp_path: Path) -> None:
    def copy(name: str) -> subprocess.CompletedProcess[str]:
        command = [str(extra_programs.program("oras")), "cp", "--from-plain-http", case.image, "--to-oci-layout"]
        return subprocess.run([*command, str(tmp_path / f"{name}:x")], capture_output=True, text=True)

    def pull(name: str) -> str:
        (tmp_path / name).mkdir()
        where = (f"oci://{case.release.chart}", "--version", VERSION, "--plain-http")
        return helm.run("pull", *where, "--destination", str(tmp_path / name))

    manifest = json.loads(case.server.blob(case.published.chart.partition("@")[2]).read_bytes())
    with changed(case.server.blob(layouts.read_image(case.built.layout, case.digest).layers[0].digest)):
        refused = copy("changed")
        assert refused.returncode != 0
        assert "digest" in refused.stderr
    assert copy("whole").returncode == 0
    with changed(case.server.blob(manifest["layers"][0]["digest"])), pytest.raises(chart.HelmError, match="digest"):
        pull("changed-chart")
    pull("whole-chart")
