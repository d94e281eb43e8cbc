"""The layout of a prepared artifact, and the check that a folder is the artifact that a digest names.

Standard library only: the engine's entry point runs the check before anything else is imported.

    <key>/model/                             the checkpoint, as the engine loads it
    <key>/reference/cases.json               inputs of the comparison with the original library
    <key>/reference/expected.safetensors     its outputs, float32 arrays called <case>/<name>
    <key>/reference/about.json               versions of the software that computed them
    <key>/reference/calibration.safetensors  its vectors of calibration texts, where the plugin quantises
    <key>/label_sets/<name>.jsonl            labels that requests name together, where the user has some
    <key>/MANIFEST.json                      every file above with size and sha256

An artifact's digest is the sha256 of its MANIFEST.json, which is canonical JSON: one content, one digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, Unsupported

LAYOUT = 2
MANIFEST = "MANIFEST.json"
MODEL = "model"
REFERENCE = "reference"
CASES = f"{REFERENCE}/cases.json"
EXPECTED = f"{REFERENCE}/expected.safetensors"
ABOUT = f"{REFERENCE}/about.json"
# vectors by which a server calibrates; not compared with anything
CALIBRATION = f"{REFERENCE}/calibration.safetensors"
CALIBRATION_VECTORS = "vectors"

# sha256 leaves the interpreter's lock, so threads help until disk or cores are used up
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, order=True)
class FileEntry:
    """One file of an artifact, by its path below the artifact's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What MANIFEST.json says.

    Attributes:
        key: The artifact's name on the volume, computed by the operator.
        plugin: The plugin whose prep made it.
        prep_version: That plugin's prep version.
        licence_note: What the plugin declares about the licence of its checkpoints; None where it declares nothing.
        source: Where the checkpoint came from. Always has ``revision`` and ``published`` (the digest of the files as
            published); has ``auxiliary`` where there was more, and ``changed`` where the original library could only load
            a copy with these fields changed.
        files: Every file but the manifest, sorted by path.
    """

    key: str
    plugin: str
    prep_version: int
    licence_note: str | None
    source: Mapping[str, Any]
    files: tuple[FileEntry, ...]

    def encode(self) -> bytes:
        """Write the manifest as the bytes that its digest is made of."""
        return canonical_json(
            {
                "manifest": LAYOUT,
                "key": self.key,
                "plugin": self.plugin,
                "prep_version": self.prep_version,
                "licence_note": self.licence_note,
                "source": dict(self.source),
                "files": _plain(self.files),
            }
        )

    @property
    def digest(self) -> str:
        """The artifact's digest."""
        return digest(self.encode())

    @property
    def reference_digest(self) -> str:
        """The digest of the recorded reference alone: the same checkpoint prepared twice may share it."""
        return digest(canonical_json(_plain(entry for entry in self.files if entry.path.startswith(f"{REFERENCE}/"))))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


def canonical_json(value: object) -> bytes:
    """Write JSON so that equal values give equal bytes: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(content: bytes) -> str:
    """Name content by its sha256, as ``sha256:<64 hex>``."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_inside(path: str) -> bool:
    """Return whether ``path`` is a plain relative path that stays below where it starts."""
    pure = PurePosixPath(path)
    # control characters and undecodable names would also end up in logs, JSON and conditions
    plain = pure.as_posix() == path and "\\" not in path and path.isprintable()
    return plain and not pure.is_absolute() and pure.parts != () and ".." not in pure.parts


def build(
    root: Path, *, key: str, plugin: str, prep_version: int, licence_note: str | None, source: Mapping[str, Any]
) -> Manifest:
    """Hash every file below ``root`` into a manifest; nothing is written.

    Raises:
        ChecksumMismatch: There is a link or another thing that is no regular file.
    """
    files = tuple(sorted(_hash_all(root, [path for path in _walk(root)[0] if path != MANIFEST])))
    return Manifest(
        key=key, plugin=plugin, prep_version=prep_version, licence_note=licence_note, source=source, files=files
    )


def tree_digest(root: Path, only: Collection[str] | None = None) -> str:
    """Return a digest of paths and contents of the files below ``root``, of all or of some; raises as ``build``."""
    paths = _walk(root)[0] if only is None else only
    return digest(canonical_json(_plain(sorted(_hash_all(root, paths)))))


def read(artifact: Path) -> Manifest:
    """Read an artifact's manifest, without reading its files.

    Raises:
        SourceFileNotFound: There is no such folder.
        ChecksumMismatch: The folder has none, or it is damaged.
        Unsupported: It is of a layout that this version does not know.
    """
    if not artifact.exists():
        raise SourceFileNotFound(f"the folder {artifact} does not exist")
    return _parse(_read_manifest(artifact), artifact)


def verify(artifact: Path, expected: str | None = None) -> Manifest:
    """Check that a folder is, byte for byte, what its manifest and ``expected`` say.

    Args:
        artifact: The artifact's folder.
        expected: The digest that the manifest must have; None where the caller has only the folder.

    Raises:
        ChecksumMismatch: A file is missing, surplus, changed or a link, or the manifest has another digest.
        Unsupported: The manifest is of a layout that this version does not know.
    """
    if artifact.is_symlink() or not artifact.is_dir():
        raise ChecksumMismatch(f"{artifact} is not a folder")
    content = _read_manifest(artifact)
    if expected is not None and digest(content) != expected:
        raise ChecksumMismatch(f"{artifact / MANIFEST} has digest {digest(content)}, expected {expected}")
    manifest = _parse(content, artifact)
    _compare_listing(artifact, {entry.path for entry in manifest.files})
    found = dict.fromkeys(_hash_all(artifact, [entry.path for entry in manifest.files]))
    changed = [entry.path for entry in manifest.files if entry not in found]
    if changed:
        raise ChecksumMismatch(f"{artifact}: {_some(changed)} differs from {MANIFEST}")
    return manifest


def _compare_listing(artifact: Path, promised: set[str]) -> None:
    """Refuse files that are missing or surplus, and folders that hold none of the promised files."""
    files, folders = _walk(artifact)
    if missing := promised - set(files):
        raise ChecksumMismatch(f"{artifact}: {_some(missing)} is missing")
    known = {parent.as_posix() for path in promised for parent in PurePosixPath(path).parents}
    if surplus := (set(files) - promised - {MANIFEST}) | (set(folders) - known):
        raise ChecksumMismatch(f"{artifact}: {_some(surplus)} is not in {MANIFEST}")


def _walk(root: Path) -> tuple[list[str], list[str]]:
    """List files and folders below ``root``, refusing whatever is neither."""
    files: list[str] = []
    folders: list[str] = []
    for entry in _scan(root):
        path = Path(entry.path).relative_to(root).as_posix()
        if entry.is_dir(follow_symlinks=False):
            folders.append(path)
        elif entry.is_file(follow_symlinks=False):
            files.append(path)
        else:
            raise ChecksumMismatch(f"{root}: {path} is a link or another special file")
    return files, folders


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Visit everything below ``folder``, never through a link."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _scan(Path(entry.path))


def _hash_all(root: Path, paths: Iterable[str]) -> list[FileEntry]:
    """Hash files in threads, the largest first, so that none is left to run alone at the end."""
    by_size = sorted(paths, key=lambda path: -(root / path).lstat().st_size)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda path: _hash_one(root, path), by_size))


def _hash_one(root: Path, path: str) -> FileEntry:
    """Hash one regular file, without following a link that took its place since the listing."""
    descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ChecksumMismatch(f"{root}: {path} is not a regular file")
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileEntry(path, stream.tell(), sha256)


def _read_manifest(artifact: Path) -> bytes:
    """Read the manifest's bytes."""
    path = artifact / MANIFEST
    if path.is_symlink() or not path.is_file():
        raise ChecksumMismatch(f"{artifact} has no {MANIFEST}")
    return path.read_bytes()


def _parse(content: bytes, artifact: Path) -> Manifest:
    """Parse a manifest's bytes, which must be exactly the canonical ones."""
    try:
        raw: dict[str, Any] = json.loads(content)
        if (layout := raw["manifest"]) != LAYOUT:
            raise Unsupported(f"{artifact / MANIFEST} has layout {layout!r}; this version knows {LAYOUT}")
        manifest = Manifest(
            key=raw["key"],
            plugin=raw["plugin"],
            prep_version=raw["prep_version"],
            licence_note=raw["licence_note"],
            source=raw["source"],
            files=tuple(FileEntry(entry["path"], entry["size"], entry["sha256"]) for entry in raw["files"]),
        )
        canonical = manifest.encode() == content
        sound = all(is_inside(entry.path) and entry.path != MANIFEST for entry in manifest.files)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ChecksumMismatch(f"{artifact / MANIFEST} is damaged: {error!r}") from error
    paths = [entry.path for entry in manifest.files]
    if not canonical or not sound or paths != sorted(set(paths)):
        raise ChecksumMismatch(f"{artifact / MANIFEST} is not canonical")
    return manifest


def _plain(entries: Iterable[FileEntry]) -> list[dict[str, str | int]]:
    """Turn entries into what JSON holds."""
    return [{"path": entry.path, "size": entry.size, "sha256": entry.sha256} for entry in entries]


def _some(paths: Iterable[str]) -> str:
    """Name the first few of many paths."""
    ordered = sorted(paths)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
