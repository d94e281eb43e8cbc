"""Run a recorder in the environment of its library: ``python -m encoder_plugins.prep.record_worker FOLDER``.

The folder holds the request, and gets the recording. Imports the standard library, numpy and the recorder's module.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from encoder_plugins import python_gc
from encoder_plugins.errors import PrepareError
from encoder_plugins.plugin import resolve
from encoder_plugins.prep import recorder as exchange
from encoder_plugins.prep.recorder import Configurable, Recorder

IMPORTED = "imported.json"


def main(folder: Path) -> int:
    """Record, and return the exit status: 0, or that of the error that the recorder raised on purpose."""
    request = exchange.read_request(folder)
    try:
        recorder: Recorder = resolve(request["recorder"])
        if parameters := request["parameters"]:
            configurable: Configurable = resolve(request["recorder"])
            recorder = configurable.configured(parameters)
        recording = recorder.record(
            Path(request["checkpoint"]),
            {name: Path(path) for name, path in request["auxiliary"].items()},
            request["cases"],
            trust_remote_code=request["trust_remote_code"],
        )
    except PrepareError as error:
        refused = {"class": type(error).__name__, "message": str(error)}
        (folder / exchange.REFUSED).write_text(json.dumps(refused), encoding="utf-8")
        return error.exit_status
    exchange.write_recording(folder, recording)
    ours = sorted(name for name in sys.modules if name.split(".")[0] in ("encoder_plugins", "encoder_kernels"))
    (folder / IMPORTED).write_text(json.dumps(ours), encoding="utf-8")
    return 0


if __name__ == "__main__":
    # standard output belongs to prep's progress lines; libraries print what they like
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    python_gc.raise_threshold()
    sys.exit(main(Path(sys.argv[1])))
