"""A prep process that ends itself with SIGKILL at a given phase; run as a script by the tests."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from encoder_plugins import catalog
from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request


def record(model: Path, inputs: Inputs = ()) -> Recording:
    """Record nothing worth having."""
    return Recording(cases=[{"id": "one"}], expected={"one": np.zeros((1, 1), np.float32)}, about={})


def main(source: str, output: str, endpoint: str, revision: str, phase: str) -> None:
    """Prepare, or die at `phase`."""

    def emit(line: dict[str, object]) -> None:
        if line["phase"] == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    plugin = replace(catalog.get("sentence_transformer"), recorder="dying_prep:record")
    request = Request(
        plugin=plugin, source=source, output=Path(output), endpoint=endpoint, revision=revision, stall_seconds=60
    )
    print(prepare(request, Progress(emit)).digest)


if __name__ == "__main__":
    main(*sys.argv[1:])
