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
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MARKERS = {"unit": "not engine and not cluster and not gpu and not soak", "all": "not gpu and not soak"}
PROCESS_EVENTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")
POLL_SECONDS = 0.01
LOG, NOTES = Path("mutant.log"), Path("mutant.json")
LOG_CHARACTERS = 4000


@dataclass(frozen=True)
class Task:
    """What to run.

    Attributes:
        module: Path of the changed module; empty for a run without a change.
        source: Its changed source.
        tests: Files of tests, or single ones, in the order in which they run.
        level: A key of MARKERS.
        timeout: Seconds that they may take.
        trace: Path of the module whose lines are traced; empty for none.
    """

    module: str
    source: str
    tests: Sequence[str]
    level: str
    timeout: float
    trace: str = ""


@dataclass(frozen=True)
class Trace:
    """What one test did.

    Attributes:
        seconds: How long it took.
        lines: The traced module's lines that it executed, in this process.
        processes: Whether it started a process, which may execute any line.
    """

    seconds: float
    lines: Sequence[int]
    processes: bool


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes:
        status: `passed`, `failed`, or `timeout`.
        by: The first test that failed; empty where none did.
        seconds: How long it took.
        traces: What each test did, by its id; where nothing is traced, only how long it took.
        log: The end of what the tests printed, where they failed.
    """

    status: str
    by: str = ""
    seconds: float = 0.0
    traces: dict[str, Trace] = field(default_factory=dict)
    log: str = ""


class _Recorder:
    """Notes the first failure, and what each test does.

    Attributes:
        by: The first test that failed.
    """

    def __init__(self, traced: str) -> None:
        self.by = ""
        self._file = str(Path(traced).resolve()) if traced else ""
        self._test = ""
        self._seconds: dict[str, float] = {}
        self._lines: dict[str, set[int]] = {}
        self._processes: set[str] = set()
        if traced:
            sys.addaudithook(self._audit)
            threading.settrace(self._call)
            sys.settrace(self._call)

    def traces(self) -> dict[str, dict[str, Any]]:
        """Return what each test did, as JSON; what was executed before the first one is that of the test named ""."""
        return {
            test: asdict(Trace(seconds, sorted(self._lines.get(test, ())), test in self._processes))
            for test, seconds in {"": 0.0, **self._seconds}.items()
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid
        if self._file:
            # a test that exhausts the stack within a traced function ends tracing for those behind it
            sys.settrace(self._call)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid

    def _audit(self, event: str, _: object) -> None:
        if event in PROCESS_EVENTS:
            self._processes.add(self._test)

    def _call(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename == self._file else None

    def _line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        self._lines.setdefault(self._test, set()).add(frame.f_lineno)
        return self._line


def run(task: Task) -> Outcome:
    """Run a task's tests in a fork, with its module changed meanwhile."""
    path = Path(task.module) if task.module else None
    original = path.read_text("utf-8") if path else ""
    begin = time.monotonic()
    try:
        if path:
            _write(path, task.source)
        found = _forked(task, begin)
        # a test whose name cannot be given as an argument: its file is run
        found = found or _forked(replace(task, tests=_files(task.tests)), begin)
        assert found is not None
        return found
    finally:
        if path:
            _write(path, original)


def _files(tests: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


_writes = 0


def _write(path: Path, source: str) -> None:
    global _writes
    path.write_text(source, "utf-8")
    # compiled files are found again by the source's size and by its time in seconds: no two versions share one
    _writes += 1
    os.utime(path, (_writes, _writes))


def _forked(task: Task, begin: float) -> Outcome | None:
    """Run the tests; return None where one that is named was not found."""
    NOTES.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _child(task)
    status: int | None = None
    try:
        while status is None and time.monotonic() - begin < task.timeout:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(code)
            else:
                time.sleep(POLL_SECONDS)
    finally:
        # the tests themselves where their time is over, and what they have left
        _end_descendants()
    seconds = time.monotonic() - begin
    if status is None:
        return Outcome("timeout", seconds=seconds)
    notes: dict[str, Any] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    if status == pytest.ExitCode.OK:
        traces = {test: Trace(**found) for test, found in notes["traces"].items()}
        return Outcome("passed", seconds=seconds, traces=traces)
    log = LOG.read_text(errors="replace")[-LOG_CHARACTERS:]
    if status == pytest.ExitCode.USAGE_ERROR and any("::" in test for test in task.tests):
        return None
    return Outcome("failed", notes.get("by") or f"status {status}", seconds, log=log)


def _child(task: Task) -> None:
    code = 70
    try:
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        recorder = _Recorder(task.trace)
        # what was imported before the fork has no rewritten assertions
        options = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-x", "-q", "-m", MARKERS[task.level]]
        code = int(pytest.main([*options, *task.tests], plugins=[recorder]))
        # nothing is left to run where a file has engine tests only
        code = 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code
        NOTES.write_text(json.dumps({"by": recorder.by, "traces": recorder.traces()}))
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
