"""Hashes files as their sources do, and compares them with what was promised."""

from __future__ import annotations

import hashlib
from pathlib import Path

from encoder_plugins.errors import ChecksumMismatch
from encoder_plugins.prep.checkpoint import SourceFile

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def git_sha1_of(path: Path) -> str:
    """Hash a file as git names it: the sha1 of its length and its bytes."""
    hashed = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def agreed(file: SourceFile, stated: str | None, host: str) -> str | None:
    """Return the sha256 that a file must have: the one that is known, or else the one that its source states, if it states one.

    Args:
        file: The file, with what is known of it.
        stated: The sha256 that its source states; None if it states none.
        host: The source's name, for messages.

    Raises:
        ChecksumMismatch: They differ, so that the file need not be downloaded.
    """
    if file.sha256 and stated and stated != file.sha256:
        raise ChecksumMismatch(f"{file.path} hashes to {stated} at {host}, expected {file.sha256}")
    return file.sha256 or stated


def check(file: SourceFile, path: Path) -> None:
    """Compare a file with what its source promised; a size or a hash that it did not report is not compared.

    Raises:
        ChecksumMismatch: Size or hash differ.
    """
    size = path.stat().st_size
    if file.size >= 0 and size != file.size:
        raise ChecksumMismatch(f"{file.path} has {size} bytes, expected {file.size}")
    expected = file.sha256 or file.git_sha1
    if expected is None:
        return
    found = sha256_of(path) if file.sha256 else git_sha1_of(path)
    if found != expected:
        raise ChecksumMismatch(f"{file.path} hashes to {found}, expected {expected}")
