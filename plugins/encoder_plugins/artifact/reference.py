"""The recorded answers of an original library: what a plugin's recorder returns, and how an artifact stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from encoder_plugins.artifact import manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What an original library answered.

    Attributes:
        cases: The inputs, each with an ``id``; the rest is the plugin's.
        expected: The outputs by case id, fp32.
        about: Versions of what computed them.
    """

    cases: Sequence[Mapping[str, object]]
    expected: Mapping[str, NDArray[np.float32]]
    about: Mapping[str, str]


def write(recording: Recording, folder: Path) -> None:
    """Store a recording in an artifact that is being made."""
    identifiers = [str(case["id"]) for case in recording.cases]
    if len(set(identifiers)) != len(identifiers) or set(identifiers) != set(recording.expected):
        raise ValueError("a recording has one expected output for each case, and each case has an id of its own")
    (folder / manifest.REFERENCE).mkdir()
    (folder / manifest.CASES).write_bytes(manifest.canonical_json([dict(case) for case in recording.cases]))
    # the torch side of safetensors reports a full disk as an error of its own; here it is an OSError, as everywhere
    expected = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in recording.expected.items()}
    (folder / manifest.EXPECTED).write_bytes(save(expected))
    (folder / manifest.ABOUT).write_bytes(manifest.canonical_json(dict(recording.about)))
