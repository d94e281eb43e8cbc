"""Layouts, chain ids, and archives that carry only what a node lacks."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from encoder_node import layouts
from encoder_node.errors import NodeError


def layer(folder: Path, name: str, content: bytes) -> Path:
    archive = folder / f"{name}.tar"
    with tarfile.open(archive, "w") as out:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        out.addfile(entry, io.BytesIO(content))
    return archive


@pytest.fixture
def layout(tmp_path: Path) -> tuple[Path, str]:
    """A layout with one image of one layer."""
    digest = layouts.write_layout(tmp_path / "layout", layer(tmp_path, "file", b"content"), ["PATH=/bin"])
    return tmp_path / "layout", digest


def test_a_compressed_layer_of_a_second_image_has_the_digest_of_what_is_in_it(
    layout: tuple[Path, str], tmp_path: Path
) -> None:
    folder, first = layout
    archive = layer(tmp_path, "other", b"other").read_bytes()
    (tmp_path / "other.tar.gz").write_bytes(gzip.compress(archive))
    second = layouts.write_layout(folder, tmp_path / "other.tar.gz", [], diff_id=layouts.sha256(archive))
    index = json.loads((folder / "index.json").read_bytes())
    assert [entry["digest"] for entry in index["manifests"]] == [first, second]
    image = layouts.read_image(folder, second)
    assert image.chains == (layouts.sha256(archive),)
    assert gzip.decompress(layouts.blob_path(folder, image.layers[0].digest).read_bytes()) == archive


def test_chain_of_one_layer_is_its_digest() -> None:
    assert layouts.chain_ids(["sha256:a"]) == ("sha256:a",)


def test_chain_contains_all_layers_below() -> None:
    first, second, third = layouts.chain_ids(["sha256:a", "sha256:b", "sha256:c"])
    assert second == layouts.sha256(b"sha256:a sha256:b")
    assert third == layouts.sha256(f"{second} sha256:c".encode())
    assert first == "sha256:a"


def image_of(count: int) -> layouts.Image:
    blobs = tuple(layouts.Descriptor(f"sha256:{number}", number) for number in range(count))
    return layouts.Image(blobs[0], blobs[0], blobs, layouts.chain_ids([blob.digest for blob in blobs]))


def test_empty_node_needs_every_layer() -> None:
    image = image_of(3)
    assert layouts.needed_layers(image, set()) == image.layers


def test_node_with_the_lower_layers_needs_the_rest() -> None:
    image = image_of(3)
    assert layouts.needed_layers(image, {image.chains[0], image.chains[1]}) == image.layers[2:]


def test_same_layer_on_another_base_counts_for_nothing() -> None:
    image = image_of(3)
    assert layouts.needed_layers(image, {image.layers[1].digest, image.layers[2].digest}) == image.layers


def test_node_with_all_layers_needs_none() -> None:
    image = image_of(3)
    assert layouts.needed_layers(image, set(image.chains)) == ()


def test_written_layout_reads_back(layout: tuple[Path, str]) -> None:
    image = layouts.read_image(*layout)
    assert image.chains == (image.layers[0].digest,)
    assert image.size == image.layers[0].size


def test_layout_is_the_same_for_the_same_layer(tmp_path: Path) -> None:
    digests = {
        layouts.write_layout(tmp_path / name, layer(tmp_path, "file", b"content"), ["PATH=/bin"]) for name in "ab"
    }
    assert len(digests) == 1


def test_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="sha256:0000"):
        layouts.read_image(tmp_path, "sha256:0000")


def archived(layout: tuple[Path, str], layers: tuple[layouts.Descriptor, ...]) -> tarfile.TarFile:
    out = io.BytesIO()
    layouts.write_archive(layout[0], "docker.io/a/b:1", layouts.read_image(*layout), layers, out)
    out.seek(0)
    return tarfile.open(fileobj=out)


def test_thin_archive_names_the_image_and_lacks_the_layers(layout: tuple[Path, str]) -> None:
    image = layouts.read_image(*layout)
    with archived(layout, ()) as archive:
        names = archive.getnames()
        index = archive.extractfile("index.json")
        assert index is not None
        entry = json.load(index)["manifests"][0]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/a/b:1"}
    assert entry["digest"] == layout[1]
    assert not [name for name in names if name.endswith(image.layers[0].digest.removeprefix("sha256:"))]


def test_full_archive_carries_the_layer(layout: tuple[Path, str]) -> None:
    image = layouts.read_image(*layout)
    with archived(layout, image.layers) as archive:
        member = archive.getmember(f"blobs/{image.layers[0].digest.replace(':', '/')}")
    assert member.size == image.layers[0].size


def test_hollow_layer_keeps_its_size_and_is_never_sent(layout: tuple[Path, str]) -> None:
    image = layouts.read_image(*layout)
    blob = layouts.blob_path(layout[0], image.layers[0].digest)
    assert not layouts.is_hollow(blob)
    layouts.hollow(blob)
    assert layouts.is_hollow(blob)
    assert blob.stat().st_size == image.layers[0].size
    with pytest.raises(NodeError, match=image.layers[0].digest):
        archived(layout, image.layers)
