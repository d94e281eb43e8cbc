"""Image archives of the node's own two programs: one file in one layer, no base, the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from encoder_node.errors import NodeError

LAYOUT = 1
"""Raised when the archives are to be made again."""
_OCI = "application/vnd.oci.image"


def write(archive: Path, reference: str, program: Path, *, user: str = "") -> None:
    """Writes the image `reference`, whose entry point is `program` at the root of its file system."""
    layer = _layer(program)
    layer_descriptor = _descriptor(f"{_OCI}.layer.v1.tar", layer)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": user},
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor(f"{_OCI}.config.v1+json", config),
            "layers": [layer_descriptor],
        }
    )
    named = {
        **_descriptor(f"{_OCI}.manifest.v1+json", manifest),
        "annotations": {"io.containerd.image.name": reference},
    }
    index = _json({"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [named]})
    with tarfile.open(archive, "w") as out:
        _add(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(out, "index.json", index)
        for blob in (layer, config, manifest):
            _add(out, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)


def digest(archive: Path) -> str:
    """Returns the digest of the image in an archive that `write` has made."""
    with tarfile.open(archive) as source:
        index = source.extractfile("index.json")
        if index is None:
            raise NodeError(f"{archive} has no index.json")
        found: str = json.load(index)["manifests"][0]["digest"]
        return found


def _layer(program: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        _add(out, program.name, program.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(out: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    out.addfile(entry, io.BytesIO(data))


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
