"""A prep process that ends itself with SIGKILL at a given phase; run as a script by the tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request


def record(
    plugin: Plugin,
    checkpoint: Path,
    auxiliary: Mapping[str, Path],
    cases: Sequence[Case],
    *,
    trust_remote_code: bool = False,
    parameters: Mapping[str, Value] | None = None,
) -> Recording:
    """Record nothing worth having."""
    return Recording(cases=[{"id": "one"}], outputs={"one": {"vector": np.zeros((1, 1), np.float32)}}, about={})


def main(source: str, output: str, endpoint: str, revision: str, phase: str) -> None:
    """Prepare, or die at `phase`."""

    def emit(line: dict[str, object]) -> None:
        if line["phase"] == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    plugin = catalog.get("sentence_transformer")
    request = Request(
        plugin=plugin, source=source, output=Path(output), endpoint=endpoint, revision=revision, stall_seconds=60
    )
    print(prepare(request, Progress(emit), record).digest)


if __name__ == "__main__":
    main(*sys.argv[1:])
