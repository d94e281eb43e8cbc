import os
import subprocess
import sys
from pathlib import Path

import pytest

from encoder_node import progress
from encoder_node.errors import CommandFailedError, NodeError, WaitTimeoutError
from encoder_node.waiting import exclusive, wait_for


def test_wait_that_ends_too_late_says_what_it_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    log.write_text("".join(f"line {i}\n" for i in range(40)))
    with pytest.raises(WaitTimeoutError, match=r"^etcd: not so after 0\.1 s$") as caught:
        wait_for("etcd", lambda: False, seconds=0.1, log=log)
    explained = caught.value.explain()
    assert "| line 39" in explained
    assert "line 14" not in explained


def test_what_was_waited_for_is_returned_and_what_was_seen_instead_is_reported() -> None:
    found = iter([[], {}, ["pod"]])
    assert wait_for("a pod", lambda: next(found), seconds=60, every=0) == ["pod"]
    with pytest.raises(WaitTimeoutError, match=r"^a pod: not so after 0 s \(last seen: \{\}\)$"):
        wait_for("a pod", lambda: {}, seconds=0)


def test_wait_ends_early_when_it_is_pointless() -> None:
    def check() -> None:
        raise NodeError("etcd ended with 1")

    with pytest.raises(NodeError, match="etcd ended with 1"):
        wait_for("etcd", lambda: False, seconds=60, check=check)


def test_log_that_is_not_there_is_no_second_error(tmp_path: Path) -> None:
    assert "(empty)" in NodeError("x", log=tmp_path / "none").explain()


def test_failed_command_is_shown_with_its_output() -> None:
    assert str(CommandFailedError(["ip", "link"], 2, "no device\n")) == "`ip link` ended with 2: no device"


def test_second_process_waits_and_says_for_whom(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = "import sys; from encoder_node.waiting import exclusive; from pathlib import Path\nwith exclusive(Path(sys.argv[1]), 'x', seconds=1): print('in', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        with (
            pytest.raises(WaitTimeoutError, match=f"building: process {process.pid} "),
            exclusive(lock, "building", seconds=0.1),
        ):
            pass
        process.communicate(b"\n")
    with exclusive(lock, "building", seconds=1):
        assert lock.read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (41.2, "41 s"), (119.4, "119 s"), (200, "3 min 20 s")]
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_lines_of_progress_are_aligned() -> None:
    lines = [progress.line("cluster", "node Ready", 5.2), progress.line("operator", "encoder-operator Available", 61)]
    assert lines[0].startswith("  cluster    node Ready ")
    assert {len(line) for line in lines} == {progress.TIME_COLUMN}
    assert progress.line("parity", "48 cases") == "  parity     48 cases"
