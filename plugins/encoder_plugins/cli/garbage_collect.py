"""`encoder-plugins collect`: remove from a volume the artifacts that are not kept.

The caller names the keys to keep and the time at which it read them; artifacts that a prep has used since then, or not
long before, stay. An artifact goes under the lock that its prep would take, and by one rename, so that a prep either finds
it whole or makes it anew. Standard library only: it runs in the operator's image.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.staging import Staging, locked_now
from encoder_plugins.errors import BadArgument, PrepareError

_KEY = re.compile(r"[0-9a-f]{64}")
DEFAULT_GRACE_SECONDS = 3600


@dataclass(slots=True)
class Collected:
    """What was done about each key, and how many bytes that freed."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    recent: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    bytes: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("volume", type=Path, help="folder of the artifacts")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="KEY", help="key of an artifact that is kept; may be repeated"
    )
    parser.add_argument(
        "--listed-at", required=True, metavar="TIME", help="time at which the keys to keep were listed (RFC 3339)"
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=DEFAULT_GRACE_SECONDS,
        help="keep what a prep used less than this many seconds before that time, or later (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    parser.add_argument("--termination-log", type=Path, help="also write the result to this file as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Collect, and say what was done.

    Raises:
        BadArgument: The time or a key is malformed, or there is no such folder. An artifact whose key is malformed would be removed.
    """
    try:
        listed_at = datetime.fromisoformat(arguments.listed_at)
    except ValueError as error:
        raise BadArgument(f"--listed-at: {error}") from None
    if listed_at.tzinfo is None:
        raise BadArgument("--listed-at: the time has no zone")
    for key in arguments.keep:
        if not _KEY.fullmatch(key):
            raise BadArgument(f"--keep {key!r}: a key has 64 hexadecimal digits in lower case")
    if not 0 <= arguments.grace_seconds < math.inf:
        raise BadArgument(f"--grace-seconds {arguments.grace_seconds}: it must be 0 or more")
    if not arguments.volume.is_dir():
        raise BadArgument(f"{arguments.volume} is not a folder")
    before = listed_at.timestamp() - arguments.grace_seconds
    found = collect(arguments.volume, set(arguments.keep), before, dry_run=arguments.dry_run)
    line = json.dumps({"code": "Collected", "message": _worded(found, dry_run=arguments.dry_run), **_numbers(found)})
    print(line, flush=True)
    if arguments.termination_log is not None:
        arguments.termination_log.write_text(line)
    return 0


def collect(volume: Path, keep: Collection[str], before: float, *, dry_run: bool = False) -> Collected:
    """Remove the artifacts and the remains of preps that nobody keeps.

    Args:
        volume: The folder that holds artifacts by key.
        keep: Keys that stay.
        before: Seconds since the epoch: what was looked at later stays.
        dry_run: Only find out.
    """
    found = Collected()
    for key in sorted(_keys(volume)):
        staging = Staging.beside(volume / key)
        if key in keep:
            found.kept.append(key)
        elif not _is_old(staging, before):
            found.recent.append(key)
        elif dry_run:
            found.removed.append(key)
            found.bytes += _size(staging)
        else:
            _remove(staging, before, found)
    return found


def _keys(volume: Path) -> Iterator[str]:
    """Find what is ours: folders that an artifact's manifest calls by their own name, and what preps have left."""
    staged = volume / ".staging"
    names = {path.name.removesuffix(".lock") for path in staged.iterdir()} if staged.is_dir() else set()
    yield from (name for name in names if _KEY.fullmatch(name))
    for path in volume.iterdir():
        if _KEY.fullmatch(path.name) and path.name not in names and _is_artifact(path):
            yield path.name


def _is_artifact(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    try:
        return manifest.read(path).key == path.name
    except PrepareError:
        # of a later version, or damaged: nothing to be sure of
        return False


def _remove(staging: Staging, before: float, found: Collected) -> None:
    key = staging.output.name
    with locked_now(staging) as held:
        # a prep may have come since we looked
        if not held:
            found.locked.append(key)
        elif not _is_old(staging, before):
            found.recent.append(key)
        else:
            found.bytes += _size(staging)
            if _is_artifact(staging.output):
                staging.set_aside()
            staging.discard()
            found.removed.append(key)


def _is_old(staging: Staging, before: float) -> bool:
    """Return whether no prep has used or written an artifact for long enough."""
    moments = []
    # not the staging folder itself, which taking the lock creates
    for path in (staging.output / manifest.MANIFEST, *staging.root.rglob("*")):
        try:
            moments.append(path.lstat().st_mtime)
        except FileNotFoundError:
            continue
    return max(moments, default=0.0) < min(before, time.time())


def _size(staging: Staging) -> int:
    total = 0
    for root in (staging.output, staging.root):
        total += sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    return total


def _numbers(found: Collected) -> dict[str, object]:
    # a termination message holds 4 KiB
    return {name: value[:20] if isinstance(value, list) else value for name, value in asdict(found).items()}


def _worded(found: Collected, *, dry_run: bool) -> str:
    verb = "would be removed" if dry_run else "removed"
    return (
        f"{len(found.removed)} artifacts {verb} ({found.bytes} bytes), {len(found.kept)} in use, "
        f"{len(found.recent)} too recent, {len(found.locked)} being prepared"
    )
