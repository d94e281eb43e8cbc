"""Record which files were fetched completely from a source that reports no hashes; the next attempt accepts only those.

A tag (of an object store) says which content a name had when it was fetched; the sha256 is of the bytes that came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from encoder_plugins.artifact.manifest import canonical_json
from encoder_plugins.prep import checksums
from encoder_plugins.prep.checkpoint import SourceFile


class Received:
    """The list, one line of JSON for each file, at the end of which a kill may leave a torn one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str | None], str] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
                self._known[entry["path"], entry["tag"]] = entry["sha256"]
            except (ValueError, KeyError, TypeError):
                continue

    def known(self, file: SourceFile) -> SourceFile | None:
        """Return the file with a hash to compare a copy with; None where a copy cannot be recognised as this content."""
        if file.sha256 or file.git_sha1 or file.tag is None:
            return file
        sha256 = self._known.get((file.path, file.tag))
        return replace(file, sha256=sha256) if sha256 else None

    def note(self, file: SourceFile, path: Path) -> None:
        """Remember that ``path`` has the whole content."""
        if file.sha256 or file.git_sha1 or file.tag is None:
            return
        sha256 = self._known[file.path, file.tag] = checksums.sha256_of(path)
        with self._path.open("a", encoding="utf-8") as stream:
            # a torn line of an earlier process must not take this one with it
            stream.write("\n" + json.dumps({"path": file.path, "tag": file.tag, "sha256": sha256}) + "\n")

    def digest(self, files: Iterable[SourceFile]) -> str:
        """Return the digest of all that was taken: what stands for a revision where the source has none."""
        taken = [self.known(file) for file in sorted(files, key=lambda file: file.path)]
        listed = [[file.path, file.size, file.sha256] for file in taken if file is not None]
        return hashlib.sha256(canonical_json(listed)).hexdigest()
