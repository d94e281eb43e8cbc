"""OCI image layouts: reading images, chain ids, and archives that leave out what a node has already.

A chain id names a layer together with all below it; it is what containerd calls an unpacked layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from encoder_node.errors import NodeError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob's name and size."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Image:
    """What a manifest and its configuration say."""

    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]
    chains: tuple[str, ...]
    """The chain id of each layer."""

    @property
    def size(self) -> int:
        """Size of all layers as they are kept, in bytes; ours are not compressed."""
        return sum(layer.size for layer in self.layers)


def sha256(data: bytes) -> str:
    """Returns the digest of a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def canonical(value: object) -> bytes:
    """Returns JSON that is the same bytes each time."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the chain id of each layer, from the digests of the uncompressed layers, the lowest first."""
    chains: list[str] = []
    for diff_id in diff_ids:
        chains.append(sha256(f"{chains[-1]} {diff_id}".encode()) if chains else diff_id)
    return tuple(chains)


def blob_path(layout: Path, digest: str) -> Path:
    """Returns where a layout keeps a blob."""
    return layout / "blobs" / digest.replace(":", "/")


def is_hollow(path: Path) -> bool:
    """Whether a file has lost its content."""
    found = path.stat()
    return found.st_size > 0 and found.st_blocks == 0


def hollow(path: Path) -> None:
    """Takes a file's content and keeps its size, under all its names."""
    size = path.stat().st_size
    path.chmod(0o644)
    os.truncate(path, 0)
    os.truncate(path, size)
    path.chmod(0o444)


def read_image(layout: Path, digest: str) -> Image:
    """Reads the image whose manifest has this digest.

    Raises:
        NodeError: The layout lacks the manifest or the configuration.
    """
    try:
        raw = blob_path(layout, digest).read_bytes()
        manifest: dict[str, Any] = json.loads(raw)
        config: dict[str, Any] = json.loads(blob_path(layout, manifest["config"]["digest"]).read_bytes())
    except FileNotFoundError as error:
        raise NodeError(f"{layout} has not all of image {digest}: {error.filename} is missing") from error
    layers = tuple(Descriptor(layer["digest"], layer["size"]) for layer in manifest["layers"])
    settings = Descriptor(manifest["config"]["digest"], manifest["config"]["size"])
    return Image(Descriptor(digest, len(raw)), settings, layers, chain_ids(config["rootfs"]["diff_ids"]))


def needed_layers(image: Image, unpacked: Collection[str]) -> tuple[Descriptor, ...]:
    """Returns the layers that a node must be sent, given the chain ids that it has unpacked.

    Chain ids contain those below, so what is needed is always a tail of the list.
    """
    for count, chain in reversed(list(enumerate(image.chains, start=1))):
        if chain in unpacked:
            return image.layers[count:]
    return image.layers


def write_archive(layout: Path, reference: str, image: Image, layers: Sequence[Descriptor], out: IO[bytes]) -> None:
    """Writes an image archive that carries only some of the image's layers.

    Args:
        layout: Where the blobs are.
        reference: The name that the image gets.
        image: The image.
        layers: The layers to carry.
        out: A stream; it need not be seekable.

    Raises:
        NodeError: The layout has a layer's name and size only.
    """
    lost = [layer.digest for layer in layers if is_hollow(blob_path(layout, layer.digest))]
    if lost:
        raise NodeError(f"{layout} no longer has the content of {', '.join(lost)}")
    entry = {"mediaType": MANIFEST, "digest": image.manifest.digest, "size": image.manifest.size}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{**entry, "annotations": {"io.containerd.image.name": reference}}],
    }
    with tarfile.open(fileobj=out, mode="w|", bufsize=1 << 20) as archive:
        _add(archive, "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", canonical(index))
        for blob in dict.fromkeys((image.manifest, image.config, *layers)):
            with blob_path(layout, blob.digest).open("rb") as source:
                archive.addfile(_entry(f"blobs/{blob.digest.replace(':', '/')}", blob.size), source)


def write_layout(
    layout: Path,
    layer: Path,
    environment: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    *,
    diff_id: str | None = None,
    architecture: str = "amd64",
) -> str:
    """Adds an image of one layer to a layout, and returns the manifest's digest.

    Args:
        layout: A folder, which may not exist yet.
        layer: An archive; it is moved into the layout.
        environment: The image's environment, `NAME=value`.
        settings: The image's user, entry point and so on, in place of a shell.
        diff_id: The archive's digest before gzip compressed it; None for one that is not compressed.
        architecture: What its programs are for.
    """
    (layout / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    with layer.open("rb") as source:
        digest = f"sha256:{hashlib.file_digest(source, 'sha256').hexdigest()}"
    size = layer.stat().st_size
    shutil.move(layer, blob_path(layout, digest))

    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {**({"Cmd": ["bash"]} if settings is None else settings), "Env": list(environment)},
        "rootfs": {"type": "layers", "diff_ids": [diff_id or digest]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **put(layout, config)},
        "layers": [{"mediaType": f"{LAYER}+gzip" if diff_id else LAYER, "digest": digest, "size": size}],
    }
    entry = {"mediaType": MANIFEST, **put(layout, manifest)}
    add_to_index(layout, entry)
    (layout / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
    found: str = entry["digest"]
    return found


def write_index(layout: Path, manifests: Mapping[str, str]) -> str:
    """Adds an index of images that a layout has to it, and returns the index's digest.

    Args:
        layout: The folder.
        manifests: Digest of each image's manifest by architecture.
    """
    entries = [
        {
            "mediaType": MANIFEST,
            "digest": digest,
            "size": blob_path(layout, digest).stat().st_size,
            "platform": {"architecture": architecture, "os": "linux"},
        }
        for architecture, digest in sorted(manifests.items())
    ]
    entry = {"mediaType": INDEX, **put(layout, {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})}
    add_to_index(layout, entry)
    found: str = entry["digest"]
    return found


def put(layout: Path, value: object) -> dict[str, Any]:
    """Writes JSON as a blob of a layout, and returns its digest and size."""
    data = canonical(value)
    blob_path(layout, sha256(data)).write_bytes(data)
    return {"digest": sha256(data), "size": len(data)}


def add_to_index(layout: Path, entry: Mapping[str, Any]) -> None:
    """Lists an image in a layout's index, by its descriptor."""
    index = layout / "index.json"
    listed = json.loads(index.read_bytes())["manifests"] if index.exists() else []
    if entry["digest"] not in {other["digest"] for other in listed}:
        listed.append(entry)
    index.write_bytes(canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_entry(name, len(data)), io.BytesIO(data))
