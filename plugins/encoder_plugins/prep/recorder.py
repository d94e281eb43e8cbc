"""The interface between prep and a plugin's recorder, and the files by which the two processes exchange data.

Standard library and numpy only: both prep and the reference environment import it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from encoder_plugins.artifact.reference import Arrays, Case, Recording
from encoder_plugins.parameters import Value

REQUEST = "request.json"
CASES = "cases.json"
OUTPUTS = "outputs.npz"
ABOUT = "about.json"
CALIBRATION = "calibration.npy"
REFUSED = "refused.json"


class Recorder(Protocol):
    """Records reference outputs with the original library; runs in that library's environment.

    Modules that implement it import numpy, the library, and modules of ours that need the standard library only.
    """

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute the outputs of every case in float32 on the CPU.

        Args:
            checkpoint: The files as they were published. Nothing that ``Checkpoint.convert`` wrote is in it.
            auxiliary: Folders of the auxiliary repositories, by repository.
            cases: The inputs: built-in ones and the user's. A recorder may add fields or further cases.
            trust_remote_code: Let the library run Python code of the checkpoint.

        Raises:
            Unsupported: The library cannot load the checkpoint.
        """


class Configurable(Recorder, Protocol):
    """The recorder of a plugin that declares parameters."""

    def configured(self, parameters: Mapping[str, Value]) -> Recorder:
        """Return the recorder with the user's parameters; what it changes for them is in ``Recording.changed``."""


def write_request(
    folder: Path,
    *,
    recorder: str,
    checkpoint: Path,
    auxiliary: Mapping[str, Path],
    cases: Sequence[Case],
    trust_remote_code: bool,
    parameters: Mapping[str, Value],
) -> None:
    """Write what the worker is to record."""
    request = {
        "recorder": recorder,
        "checkpoint": str(checkpoint),
        "auxiliary": {name: str(path) for name, path in auxiliary.items()},
        "cases": [dict(case) for case in cases],
        "trust_remote_code": trust_remote_code,
        "parameters": dict(parameters),
    }
    (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")


def read_request(folder: Path) -> dict[str, Any]:
    """Read what ``write_request`` wrote."""
    request: dict[str, Any] = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    return request


def write_recording(folder: Path, recording: Recording) -> None:
    """Write a recording for the process that started the worker."""
    arrays = {
        f"{number}/{name}": np.asarray(value, dtype=np.float32)
        for number, case in enumerate(recording.cases)
        for name, value in recording.outputs[str(case["id"])].items()
    }
    # zip members have restrictions on names that case ids do not have, so cases go by number
    np.savez(folder / OUTPUTS, **arrays)  # type: ignore[arg-type]
    if recording.calibration is not None:
        np.save(folder / CALIBRATION, recording.calibration, allow_pickle=False)
    (folder / CASES).write_text(json.dumps([dict(case) for case in recording.cases]), encoding="utf-8")
    about = {"about": dict(recording.about), "changed": {name: dict(new) for name, new in recording.changed.items()}}
    (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def read_recording(folder: Path) -> Recording:
    """Read what ``write_recording`` wrote."""
    cases = json.loads((folder / CASES).read_text(encoding="utf-8"))
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    outputs: dict[str, dict[str, Any]] = {str(case["id"]): {} for case in cases}
    with np.load(folder / OUTPUTS, allow_pickle=False) as arrays:
        for path in arrays.files:
            number, _, name = path.partition("/")
            outputs[str(cases[int(number)]["id"])][name] = arrays[path]
    named: dict[str, Arrays] = dict(outputs)
    calibration = np.load(folder / CALIBRATION, allow_pickle=False) if (folder / CALIBRATION).is_file() else None
    return Recording(
        cases=cases, outputs=named, about=about["about"], changed=about["changed"], calibration=calibration
    )
