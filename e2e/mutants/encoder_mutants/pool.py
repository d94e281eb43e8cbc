"""Copies of the working tree with a worker in each: they test different mutants at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from encoder_mutants.table import ROOT
from encoder_mutants.worker import Outcome, Task, Trace


class Pool:
    """Runs tasks on its workers, each on the first that is free."""

    def __init__(self, workers: Sequence[subprocess.Popen[str]]) -> None:
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for worker in workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(len(workers))

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Return the outcomes in the order of the tasks, each as soon as it is there."""
        return self._threads.map(self._one, tasks)

    def dependent(self, tests: Sequence[str], level: str, timeout: float) -> list[str]:
        """Return those of the tests that fail without a mutant where no other test has run before them."""
        outcomes = self.run([Task("", "", [test], level, timeout) for test in tests])
        return [test for test, outcome in zip(tests, outcomes, strict=True) if outcome.status != "passed"]

    def _one(self, task: Task) -> Outcome:
        worker = self._free.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            print(json.dumps(asdict(task)), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
        finally:
            self._free.put(worker)
        if not answer:
            raise RuntimeError(f"a worker ended with {worker.wait()}; its messages are above")
        found = json.loads(answer)
        return Outcome(**{**found, "traces": {test: Trace(**trace) for test, trace in found["traces"].items()}})


@contextlib.contextmanager
def running(workers: int, preload: Sequence[str], root: Path = ROOT) -> Iterator[Pool]:
    """Copy the tree for each worker and run them while the block runs."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, contextlib.ExitStack() as stack:
        folders = source_folders(root)
        processes = []
        for number in range(workers):
            copy = Path(folder, str(number))
            copy_tree(root, copy)
            path = os.pathsep.join(str(copy / source) for source in folders)
            # torch would use every core in each worker
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "encoder_mutants.worker", *preload]
            process = subprocess.Popen(
                command, cwd=copy, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            processes.append(process)
        yield Pool(processes)


def source_folders(root: Path) -> list[str]:
    """Return the folders that hold packages, as an editable install puts them on the path."""
    content = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    folders: list[str] = content["tool"]["hatch"]["build"]["dev-mode-dirs"]
    return folders


def copy_tree(root: Path, target: Path) -> None:
    """Copy what git would commit, changes and new files included."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source = root / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
