"""Takes a checkpoint from a folder (a user's claim), whose revision is the digest of all that it holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from encoder_plugins.artifact.manifest import canonical_json, is_inside
from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, Unsupported
from encoder_plugins.prep import checksums
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress

_CHUNK = 1 << 20
# the cache of huggingface_hub consists of such links
_COPY = "copy the checkpoint with what its links lead to (cp -rL), or download it with `hf download REPOSITORY --local-dir FOLDER`"


class FolderSource:
    """One folder, as it is when it is listed."""

    def __init__(self, root: Path, revision: str | None) -> None:
        self._root = root.resolve()
        self._expected = revision
        self.revision = revision or ""

    def describe(self) -> dict[str, str]:
        """Say where the files came from. Not the path: it is where a claim happened to be mounted."""
        return {"kind": "pvc", "revision": self.revision}

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """List and hash every file.

        Raises:
            SourceFileNotFound: There is no such folder, or nothing in it.
            Unsupported: A link leads out of the folder, or something is no file, or may not be read.
            ChecksumMismatch: The content is not that of the requested revision.
        """
        if not self._root.is_dir():
            raise SourceFileNotFound(f"{self._root} is not a folder")
        try:
            paths = sorted(self._files())
            progress.start("listing", sum((self._root / path).stat().st_size for path in paths))
            files = tuple(self._hashed(path, progress) for path in paths)
        except PermissionError as error:
            raise Unsupported(f"user {os.getuid()} may not read {error.filename}: change its mode or owner") from error
        if not files:
            raise SourceFileNotFound(f"{self._root} is empty")
        listed = canonical_json([[file.path, file.size, file.sha256] for file in files])
        self.revision = hashlib.sha256(listed).hexdigest()
        if self._expected not in {None, self.revision}:
            raise ChecksumMismatch(f"{self._root} has revision {self.revision}, expected {self._expected}")
        return files

    def path(self, file: SourceFile) -> Path:
        """Return where a file that was listed is."""
        return self._root / file.path

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Return the file as it is: a folder's listing is always complete."""
        return file

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Copy a file to ``partial`` and check the copy.

        Raises:
            ChecksumMismatch: The file was changed since it was listed; the copy is removed.
        """
        with self.path(file).open("rb") as source, partial.open("wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
                progress.add(len(chunk))
        try:
            checksums.check(file, partial)
        except ChecksumMismatch:
            partial.unlink()
            raise

    def close(self) -> None:
        """Let go of connections, of which a folder has none."""

    def _hashed(self, path: str, progress: Progress) -> SourceFile:
        """Describe one file."""
        full = self._root / path
        size = full.stat().st_size
        sha256 = checksums.sha256_of(full)
        progress.add(size)
        return SourceFile(path=path, size=size, sha256=sha256)

    def _files(self) -> Iterator[str]:
        """Find every file; links are followed to files of the folder, and refused where they leave it."""
        for folder, folders, names in os.walk(self._root, onerror=_refuse):
            for name in [*folders, *names]:
                path = Path(folder, name)
                inside = path.relative_to(self._root).as_posix()
                if not is_inside(inside):
                    raise Unsupported(f"the folder {self._root} holds {inside!r}, which is not a plain relative path")
                # a link in a circle leads to itself
                target = Path(os.path.realpath(path))
                if not target.is_relative_to(self._root):
                    raise Unsupported(f"{inside} is a link that leaves the folder {self._root}: {_COPY}")
                if path.is_symlink() and target.is_dir():
                    raise Unsupported(f"{inside} is a link to a folder; only links to files are followed: {_COPY}")
                if not target.is_dir() and not target.is_file():
                    raise Unsupported(f"{inside} is neither a file nor a folder")
            yield from (Path(folder, name).relative_to(self._root).as_posix() for name in names)


def _refuse(error: OSError) -> None:
    # of a file system, and not of its user
    if Path(error.filename).name != "lost+found":
        raise error
