"""Reads a user's own cases for the comparison with the original library: a JSON list, one object for each.

What an object may hold is the plugin's to say; here is only what all share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_plugins.artifact.manifest import canonical_json, digest
from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, Unsupported

# a ConfigMap holds no more, and each case is sent four times
MOST_BYTES = 1 << 20
MOST_CASES = 256

Inputs = Sequence[Mapping[str, Any]]


def read(path: Path, sha256: str | None = None) -> tuple[dict[str, Any], ...]:
    """Read a file of cases.

    Args:
        path: The file.
        sha256: What it must hash to; None for anything.

    Raises:
        SourceFileNotFound: There is none.
        ChecksumMismatch: It is not the requested one.
        Unsupported: It is not a list of objects, or too large.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceFileNotFound(f"cannot read the file of inputs {path}: {error.strerror}") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ChecksumMismatch(f"{path.name} does not hash to {sha256}: it was changed meanwhile")
    if len(content) > MOST_BYTES:
        raise Unsupported(f"{path.name}: {len(content)} bytes of inputs; the limit is {MOST_BYTES}")
    try:
        found = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(case, dict) for case in found):
        raise Unsupported(f"{path.name} is not a list of objects, one for each case")
    if len(found) > MOST_CASES:
        raise Unsupported(f"{path.name}: {len(found)} cases; the limit is {MOST_CASES}")
    return tuple(found)


def fingerprint(inputs: Inputs) -> str:
    """Name inputs by their content; nothing for none."""
    return digest(canonical_json([dict(case) for case in inputs])) if inputs else ""


def complete(
    inputs: Inputs, required: Sequence[str], defaults: Mapping[str, Any], taken: Iterable[str]
) -> list[dict[str, Any]]:
    """Return a user's cases with an ``id`` each, and with ``defaults`` for what they leave out.

    Args:
        inputs: What the user wrote.
        required: Fields that have to be there.
        defaults: The other ones.
        taken: Ids of other cases.

    Raises:
        Unsupported: A field is unknown or missing, or an id is there twice.
    """
    known = set(taken)
    found = []
    for number, case in enumerate(inputs):
        where = f"inputs[{number}]"
        identifier = case.get("id", f"user-{number}")
        if not isinstance(identifier, str) or not identifier or len(identifier) > 64 or not identifier.isprintable():
            raise Unsupported(f"{where}.id is not a printable name of at most 64 characters")
        if identifier in known:
            raise Unsupported(f"{where}.id is {identifier!r}, which another case has")
        known.add(identifier)
        if unknown := case.keys() - defaults.keys() - {*required, "id"}:
            names = ", ".join((*required, *defaults))
            raise Unsupported(f"{where} has {', '.join(sorted(unknown))}; there is: {names}")
        if missing := [name for name in required if name not in case]:
            raise Unsupported(f"{where} has no {', '.join(missing)}")
        found.append({**defaults, **case, "id": identifier})
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
