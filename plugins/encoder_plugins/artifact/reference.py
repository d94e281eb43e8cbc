"""Reference outputs of an original library: what a recorder returns, and how an artifact stores it.

A case has named arrays, e.g. ``logits`` and ``logits_bfloat16``; the artifact keeps them as ``<case>/<name>``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact import manifest
from encoder_plugins.errors import ChecksumMismatch, Unsupported

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]
Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What an original library computed.

    Attributes:
        cases: The inputs, each with an ``id``; the other fields are the plugin's.
        outputs: For each case id, arrays by name.
        about: Versions of the software that computed them.
        changed: What was changed in a copy of the published checkpoint so that the library could load it offline: for
            each file, the new values by field. Empty where the library loaded the checkpoint as it was published.
        calibration: Vectors `[vectors, width]` by which a server calibrates what it quantises; None where it does not.
    """

    cases: Sequence[Case]
    outputs: Mapping[str, Arrays]
    about: Mapping[str, str]
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calibration: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference outputs of an artifact.

    Attributes:
        artifact: The artifact's digest.
        digest: The digest of the reference files alone.
        plugin: The plugin's name.
        cases: The inputs.
        expected: For each case id, arrays by name.
    """

    artifact: str
    digest: str
    plugin: str
    cases: tuple[Case, ...]
    expected: Mapping[str, Arrays]


def write(recording: Recording, folder: Path) -> None:
    """Store a recording in an artifact that is being written.

    Args:
        recording: What the recorder returned.
        folder: The artifact's folder; it gets ``reference/``.

    Raises:
        Unsupported: An output is not finite.
        ValueError: Cases and outputs do not correspond.
    """
    identifiers = [str(case["id"]) for case in recording.cases]
    if len(set(identifiers)) != len(identifiers) or set(identifiers) != set(recording.outputs):
        raise ValueError("a recording needs outputs for each case, and a distinct id for each case")
    if without := [name for name in identifiers if not recording.outputs[name]]:
        raise ValueError(f"the recorder returned no array for case {without[0]}")
    if recording.calibration is not None and not np.isfinite(recording.calibration).all():
        raise Unsupported("the original library computes NaN or infinity for a calibration text")
    if found := first_not_finite(recording.outputs):
        raise Unsupported(
            f"the original library computes NaN or infinity for this checkpoint (case {found[0]}, output {found[1]}):"
            " there is nothing to compare a server with"
        )
    (folder / manifest.REFERENCE).mkdir()
    (folder / manifest.CASES).write_bytes(manifest.canonical_json([dict(case) for case in recording.cases]))
    # safetensors' own writer reports a full disk as an error of its own; a write of Python's is an OSError
    from safetensors.numpy import save

    flat = {f"{case}/{name}": value for case, name, value in _flat(recording.outputs)}
    (folder / manifest.EXPECTED).write_bytes(save(flat))
    (folder / manifest.ABOUT).write_bytes(manifest.canonical_json(dict(recording.about)))
    if recording.calibration is not None:
        vectors = np.ascontiguousarray(recording.calibration, np.float32)
        (folder / manifest.CALIBRATION).write_bytes(save({manifest.CALIBRATION_VECTORS: vectors}))


def read(folder: Path) -> Reference:
    """Read the reference of an artifact, and check it against the manifest.

    Raises:
        ChecksumMismatch: A file is missing or was changed, or cases and outputs do not correspond.
        Unsupported: The manifest has a layout that this version does not know.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    sealed = manifest.read(folder)
    prefix = f"{manifest.REFERENCE}/"
    try:
        files = {entry.path: _checked(folder, entry) for entry in sealed.files if entry.path.startswith(prefix)}
        cases = tuple(json.loads(files[manifest.CASES]))
        flat = load(files[manifest.EXPECTED])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ChecksumMismatch(f"{folder}: the reference cannot be read: {error!r}") from error
    expected: dict[str, dict[str, Array]] = {}
    for path, value in flat.items():
        # a user's case id may hold a slash; an array's name never does
        case, _, name = path.rpartition("/")
        expected.setdefault(case, {})[name] = value
    if not cases or {case["id"] for case in cases} != set(expected):
        raise ChecksumMismatch(f"{folder}: the reference has no cases, or cases without expected outputs")
    return Reference(
        artifact=sealed.digest,
        digest=sealed.reference_digest,
        plugin=sealed.plugin,
        cases=cases,
        expected=expected,
    )


def first_not_finite(outputs: Mapping[str, Arrays]) -> tuple[str, str] | None:
    """Return case id and name of the first array that holds NaN or infinity; None if there is none."""
    return next(((case, name) for case, name, value in _flat(outputs) if not np.isfinite(value).all()), None)


def _flat(outputs: Mapping[str, Arrays]) -> Iterator[tuple[str, str, Array]]:
    for case, arrays in outputs.items():
        for name, value in _named(case, arrays.items()):
            yield case, name, np.ascontiguousarray(value, dtype=np.float32)


def _named(case: str, arrays: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    for name, value in arrays:
        if not name.isidentifier():
            raise ValueError(f"case {case}: {name!r} cannot name an array; use letters, digits and underscores")
        yield name, value


def _checked(folder: Path, entry: manifest.FileEntry) -> bytes:
    content = (folder / entry.path).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ChecksumMismatch(f"{entry.path} differs from the manifest")
    return content
