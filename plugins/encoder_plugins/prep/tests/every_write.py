"""`python every_write.py FAULT SOURCE FOLDER [OPTIONS as JSON]`: lets a prep meet a fault at each of its writes, one prep for each.

Faults are `kill` (SIGKILL before the call), `torn` (half of the bytes, then SIGKILL), and `full` (ENOSPC instead of the call).
After each, nothing half-made may be visible, and the next prep must make the same artifact and leave nothing else. Prints one
JSON object: which calls there were, and what was wrong.

Every write of Python goes through `os`, once `open` is the one that is written in Python; so nobody has to trace system calls.
What a compiled library writes is not among them: safetensors, where weights are converted, is one step here. Its files are staged
like all others, and a disk that is full in the middle of one is met in test_pickles.py.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.errors import InsufficientSpace, PrepareError
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Credentials, Request

CALLS = (
    "write", "ftruncate", "rename", "replace", "link", "mkdir", "unlink", "remove", "rmdir", "fsync", "utime", "chmod",
    "sendfile", "open",
)  # fmt: skip
# these need no room
FREEING = {"unlink", "remove", "rmdir", "utime", "chmod"}


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


class Fault:
    """Counts writes, and lets one of them meet the fault."""

    def __init__(self) -> None:
        self.kind = ""
        self.at = -1
        self.count = 0
        self.met = ""
        self.calls: Counter[str] = Counter()
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        # from here on, files are written by os.write
        builtins.open = io.open = importlib.import_module("_pyio").open

    def arm(self, kind: str, at: int) -> None:
        """Let the write of this number meet the fault; -1 for none."""
        self.kind, self.at, self.count, self.met = kind, at, 0, ""
        self.calls.clear()

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._writes(name, arguments):
                self.count += 1
                self.calls[name] += 1
                if self.count == self.at:
                    self._meet(name, call, arguments)
            return call(*arguments, **options)

        return watched

    def _writes(self, name: str, arguments: tuple[Any, ...]) -> bool:
        # what the process says on its own outputs is no write to the volume
        if name == "write":
            return bool(arguments[0] > 2)
        return name != "open" or bool(arguments[1] & os.O_CREAT)

    def _meet(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.met = name
        if self.kind == "full":
            if name not in FREEING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        if self.kind == "torn" and name == "write":
            call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)


def attempt(fault: Fault, request: Request, kind: str, at: int) -> str:
    """Run a prep with the fault at one write; return what happened: `killed`, `full`, or `done`."""
    if kind == "full":
        fault.arm(kind, at)
        try:
            prepare(request, Progress(lambda line: None), record)
        except InsufficientSpace:
            return "full"
        finally:
            fault.arm("", -1)
        return "done"
    child = os.fork()
    if child == 0:
        fault.arm(kind, at)
        prepare(request, Progress(lambda line: None), record)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return "done" if status == 0 else "killed" if os.WIFSIGNALED(status) else f"failed with {status}"


def wrong(request: Request, expected: str, damaged: bool) -> list[str]:
    """Say what is not as it must be after a fault, and after the prep that follows."""
    found: list[str] = []
    volume = request.output.parent
    visible = [path.name for path in volume.iterdir() if path.name != ".staging"] if volume.exists() else []
    if visible not in ([], ["key"]):
        found.append(f"visible: {visible}")
    if visible and not damaged:
        try:
            manifest.verify(request.output)
        except PrepareError as error:
            found.append(f"half-made: {error}")
    try:
        digest = prepare(request, Progress(lambda line: None), record).digest
        manifest.verify(request.output)
    except (PrepareError, OSError) as error:
        return [*found, f"the next prep: {error!r}"]
    if digest != expected:
        found.append(f"the next prep made {digest}")
    # a prep that is killed as its very last step leaves the empty folder
    if left := [path.name for path in volume.glob(".staging/*")]:
        found.append(f"left: {left}")
    return found


def main(kind: str, source: str, folder: str, options: str = "{}") -> None:
    """Try every write."""
    given = json.loads(options)
    damaged, step = bool(given.pop("damaged", False)), int(given.pop("step", 1))
    if credentials := given.pop("credentials", None):
        given["credentials"] = Credentials(*credentials)
    plugin = catalog.get("sentence_transformer")
    request = Request(plugin=plugin, source=source, output=Path(folder) / "volume" / "key", stall_seconds=60, **given)
    fault = Fault()

    def start_over() -> None:
        shutil.rmtree(request.output.parent, ignore_errors=True)
        if damaged:
            shutil.copytree(Path(folder) / "damaged", request.output)

    expected = prepare(request, Progress(lambda line: None), record).digest
    if damaged:
        shutil.copytree(request.output, Path(folder) / "damaged")
        (Path(folder) / "damaged" / "model" / "config.json").write_text("{}")
    start_over()
    fault.arm("", -1)
    prepare(request, Progress(lambda line: None), record)
    writes, calls = fault.count, dict(fault.calls)
    problems: list[str] = []
    happened: Counter[str] = Counter()
    for at in range(1, writes + 1, step):
        start_over()
        result = attempt(fault, request, kind, at)
        happened[result] += 1
        problems += [f"write {at} ({result}): {what}" for what in wrong(request, expected, damaged)]
    print(json.dumps({"problems": problems, "happened": happened, "writes": writes, "calls": calls}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(*sys.argv[1:])
