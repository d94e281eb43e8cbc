"""Download one file, resuming after the bytes that an earlier request, or an earlier process, has downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from encoder_plugins.errors import ChecksumMismatch, DownloadFailed, Unsupported
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.checksums import check
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources.retry import Retries, TryAgain

# requests a file from a byte on; gives the byte at which the response really starts, and its chunks
Open = Callable[[int], AbstractContextManager[tuple[int, Iterator[bytes]]]]


def receive(
    file: SourceFile,
    partial: Path,
    open_at: Open,
    retries: Retries,
    progress: Progress,
    *,
    most_bytes: int | None = None,
) -> None:
    """Download a file to ``partial`` and check it.

    Args:
        file: What the source promised.
        partial: Where the bytes go; those that are there already are not downloaded again.
        open_at: Requests the file from a byte on.
        retries: How requests are repeated.
        progress: Reports the bytes.
        most_bytes: A longer file is refused as soon as so many bytes were received; None for no limit.

    Raises:
        ChecksumMismatch: The bytes are not those that the source promised; they are removed.
        Unsupported: There are more than ``most_bytes``.
        PrepareError: The source refused, stalled, or failed for too long.
    """
    there = partial.stat().st_size if partial.exists() else 0
    progress.skip(there)
    furthest = _Furthest(there)
    retries.run(lambda: _stream(file, partial, open_at, retries, progress, furthest, most_bytes), progress)
    try:
        check(file, partial)
    except ChecksumMismatch:
        partial.unlink()
        raise


@dataclass(slots=True)
class _Furthest:
    """How many bytes of a file have been received at most: a source without ranges begins again after each failure."""

    end: int

    def moved_to(self, end: int) -> int:
        """Return how many bytes up to ``end`` had not been received before."""
        new = max(0, end - self.end)
        self.end += new
        return new


def _stream(
    file: SourceFile,
    partial: Path,
    open_at: Open,
    retries: Retries,
    progress: Progress,
    furthest: _Furthest,
    most_bytes: int | None,
) -> None:
    """Make one request for what is missing of a file."""
    start = partial.stat().st_size if partial.exists() else 0
    if 0 <= file.size < start:
        partial.unlink()
        progress.skip(-start)
        start = 0
    if start == file.size and start:
        return
    with open_at(start) as (begins, chunks), partial.open("ab") as target:
        if begins != start:
            # the source sends the whole file, whatever was requested
            target.truncate(0)
            progress.skip(-start)
            start = 0
        for chunk in chunks:
            start += len(chunk)
            if 0 <= file.size < start:
                break
            # a source that reports no length may send bytes for ever
            if most_bytes is not None and start > most_bytes:
                raise Unsupported(f"{file.path}: more than {most_bytes} bytes, the limit")
            target.write(chunk)
            # whatever ends this process, the next one has every byte that was received
            target.flush()
            progress.add(len(chunk))
            retries.count_bytes(furthest.moved_to(start))
    if start < file.size:
        raise TryAgain(DownloadFailed(f"{file.path} ended after {start} of {file.size} bytes"))
    if 0 <= file.size < start:
        partial.unlink()
        raise ChecksumMismatch(f"{file.path} is longer than the {file.size} bytes that its source listed")
