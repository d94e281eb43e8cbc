"""A process that runs tests again and again, each time in a fork of itself that has imported nothing of this project yet.

It reads one JSON object per line from standard input and answers each with one. What takes seconds to import (torch, transformers) is
imported before the first fork. It runs in a copy of the tree, and the changed module is a file of it: processes that tests start see the
change as well.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MARKERS = {"unit": "not engine and not cluster and not gpu and not soak", "all": "not gpu and not soak"}
POLL_SECONDS = 0.01
LOG = Path("mutant.log")
LOG_CHARACTERS = 4000


@dataclass(frozen=True)
class Task:
    """What to run.

    Attributes:
        module: Path of the changed module; empty for a run without a change.
        source: Its changed source.
        tests: Files of tests, in the order in which they run.
        level: A key of MARKERS.
        timeout: Seconds that they may take.
    """

    module: str
    source: str
    tests: Sequence[str]
    level: str
    timeout: float


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes:
        status: `passed`, `failed`, or `timeout`.
        by: The first test that failed; empty where none did.
        seconds: How long it took.
        durations: Seconds by file of tests, where all passed.
        log: The end of what the tests printed, where they failed.
    """

    status: str
    by: str = ""
    seconds: float = 0.0
    durations: dict[str, float] = field(default_factory=dict)
    log: str = ""


class _Recorder:
    """Notes the first failure, and how long each file takes."""

    def __init__(self) -> None:
        self.by = ""
        self.durations: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.durations[file] = self.durations.get(file, 0.0) + report.duration
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid


def run(task: Task) -> Outcome:
    """Run a task's tests in a fork, with its module changed meanwhile."""
    path = Path(task.module) if task.module else None
    original = path.read_text("utf-8") if path else ""
    begin = time.monotonic()
    try:
        if path:
            _write(path, task.source)
        return _forked(task, begin)
    finally:
        if path:
            _write(path, original)


_writes = 0


def _write(path: Path, source: str) -> None:
    global _writes
    path.write_text(source, "utf-8")
    # compiled files are found again by the source's size and by its time in seconds: no two versions share one
    _writes += 1
    os.utime(path, (_writes, _writes))


def _forked(task: Task, begin: float) -> Outcome:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _child(task, writing)
    os.close(writing)
    status: int | None = None
    try:
        while status is None and time.monotonic() - begin < task.timeout:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status = code
            else:
                time.sleep(POLL_SECONDS)
    finally:
        # the tests themselves where their time is over, and what they have left
        _end_descendants()
    with os.fdopen(reading) as stream:
        # a line, and not to the end of the file: whatever the tests have started may hold the other end
        line = stream.readline() if status is not None else ""
    seconds = time.monotonic() - begin
    if status is None:
        return Outcome("timeout", seconds=seconds)
    notes: dict[str, Any] = json.loads(line or "{}")
    if os.waitstatus_to_exitcode(status) == 0:
        return Outcome("passed", seconds=seconds, durations=notes.get("durations", {}))
    by = notes.get("by") or f"status {os.waitstatus_to_exitcode(status)}"
    return Outcome("failed", by, seconds, log=LOG.read_text(errors="replace")[-LOG_CHARACTERS:])


def _child(task: Task, writing: int) -> None:
    code = 70
    try:
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        recorder = _Recorder()
        # what was imported before the fork has no rewritten assertions
        options = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-x", "-q", "-m", MARKERS[task.level]]
        code = int(pytest.main([*options, *task.tests], plugins=[recorder]))
        # nothing collected, as where a file has engine tests only
        code = 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code
        notes = json.dumps({"by": recorder.by, "durations": recorder.durations})
        os.write(writing, notes.encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _end_descendants() -> None:
    """Kill every child of this process; orphans of the tests are among them."""
    tasks = Path("/proc/self/task")
    for _ in range(100):
        children = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    """Serve until standard input ends."""
    # stopped, or without its parent, it ends the tests that it runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for option, value in ((PR_SET_PDEATHSIG, signal.SIGTERM), (PR_SET_CHILD_SUBREAPER, 1)):
        if ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    # answers have a descriptor of their own: imported modules may print
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sys.argv[1:]:
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(asdict(run(Task(**json.loads(line))))), file=answers, flush=True)


if __name__ == "__main__":
    main()
