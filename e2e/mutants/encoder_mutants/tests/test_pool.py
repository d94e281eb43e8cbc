"""Mutants of a small project, run by real workers in copies of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_mutants import pool
from encoder_mutants.pool import Pool
from encoder_mutants.worker import Task
from encoder_node.waiting import wait_for

MODULE = "source/limits.py"
LIMIT = "\nLIMIT = 4\ndef limit():\n    return LIMIT\n"
PROJECT = {
    "pyproject.toml": '[tool.hatch.build]\ndev-mode-dirs = ["source"]\n[tool.pytest.ini_options]\nmarkers = ["engine", "cluster", "gpu", "soak"]\n',
    ".gitignore": "ignored.py\n",
    "ignored.py": "",
    MODULE: LIMIT,
    "source/test_limits.py": """
import subprocess, sys
import pytest
import limits
def test_limit():
    assert limits.limit() < 10
def test_a_process_sees_the_same():
    subprocess.run([sys.executable, "-c", "import limits; assert limits.LIMIT != 5"], check=True)
def test_ends():
    if limits.LIMIT == 6:
        command = [sys.executable, "-c", "import time; time.sleep(600)", "TOKEN"]
        subprocess.Popen(command, start_new_session=True).wait()
@pytest.mark.engine
def test_exactly():
    assert limits.LIMIT == 4
""",
    "source/test_stack.py": """
import sys
import limits
def test_exhausted():
    # as when the stack is exhausted within a traced function
    sys.settrace(None)
def test_behind_it():
    assert limits.limit() < 10
""",
    "source/test_order.py": """
SEEN = []
def test_first():
    SEEN.append(1)
def test_after_the_first():
    assert SEEN
""",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(exist_ok=True)
        # the path is in the command line of what a test starts, and in no other
        (root / name).write_text(text.replace("TOKEN", str(root)))
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def workers(project: Path) -> Iterator[Pool]:
    with pool.running(2, ["json"], project) as found:
        yield found


def limit(number: int) -> str:
    return LIMIT.replace("4", str(number))


def task(source: str, *, level: str = "unit", timeout: float = 60) -> Task:
    return Task(MODULE, source, ["source/test_limits.py"], level, timeout)


def started(project: Path) -> list[str]:
    """Return the command lines of the processes that tests of the project have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            line = path.read_text()
            if "time.sleep" in line and str(project) in line:
                found.append(line)
    return found


def test_outcomes_come_in_the_order_of_the_tasks(workers: Pool, project: Path) -> None:
    sources = [limit(400), LIMIT, limit(5), limit(7), "syntax error\n"]
    found = list(workers.run([task(source) for source in sources]))
    assert [outcome.status for outcome in found] == ["failed", "passed", "failed", "passed", "failed"]
    assert [outcome.by.rpartition("::")[2] for outcome in found] == [
        "test_limit",
        "",
        "test_a_process_sees_the_same",
        "",
        "source/test_limits.py",
    ]
    assert (project / MODULE).read_text() == LIMIT


def test_the_second_level_runs_engine_tests(workers: Pool) -> None:
    (found,) = workers.run([task(limit(7), level="all")])
    assert (found.status, found.by) == ("failed", "source/test_limits.py::test_exactly")


def test_a_mutant_that_hangs_is_ended_with_all_that_it_started(workers: Pool, project: Path) -> None:
    hanging, after = workers.run([task(limit(6), timeout=4), task(LIMIT)])
    assert hanging.status == "timeout"
    assert after.status == "passed"
    assert not started(project)


def test_what_runs_is_ended_with_the_workers(project: Path) -> None:
    with pool.running(1, ["json"], project) as found:
        found.run([task(limit(6))])
        wait_for("a process of a test", lambda: started(project), seconds=30)
    wait_for("no process of a test", lambda: not started(project), seconds=30)


def test_a_run_without_a_mutant_traces_what_each_test_does(workers: Pool) -> None:
    (found,) = workers.run([Task("", "", ["source/test_limits.py"], "unit", 60, trace=MODULE)])
    assert found.status == "passed"
    name = "source/test_limits.py::"
    assert set(found.traces) == {"", name + "test_limit", name + "test_a_process_sees_the_same", name + "test_ends"}
    # the module is executed when it is imported, and one test calls its function
    assert 2 in found.traces[""].lines
    assert found.traces[name + "test_limit"].lines == [4]
    assert [test for test, trace in found.traces.items() if trace.processes] == [name + "test_a_process_sees_the_same"]


def test_a_test_that_ends_tracing_ends_it_for_itself_only(workers: Pool) -> None:
    (found,) = workers.run([Task("", "", ["source/test_stack.py"], "unit", 60, trace=MODULE)])
    assert found.traces["source/test_stack.py::test_behind_it"].lines == [4]


def test_a_test_that_cannot_be_named_is_run_with_its_file(workers: Pool) -> None:
    (found,) = workers.run([Task(MODULE, limit(400), ["source/test_limits.py::test_none"], "unit", 60)])
    assert found.status == "failed"


def test_a_test_that_needs_another_one_before_it_kills_nothing(workers: Pool) -> None:
    tests = [f"source/test_order.py::{name}" for name in ("test_first", "test_after_the_first")]
    (found,) = workers.run([Task("", "", tests, "unit", 60)])
    assert found.status == "passed"
    assert workers.dependent(tests, "unit", 60) == tests[1:]


def test_a_copy_has_what_git_would_commit(project: Path, tmp_path: Path) -> None:
    pool.copy_tree(project, tmp_path / "copy")
    assert (tmp_path / "copy" / MODULE).exists()
    assert not (tmp_path / "copy" / "ignored.py").exists()
