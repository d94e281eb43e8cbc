"""Several processes that look like one: started in turn, signalled together, ended together. Real processes, in a few lines each."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

# the supervisor wants the main thread's signal handlers: it gets a process of its own, as in a pod
SUPERVISE = """
import sys
from pathlib import Path
from encoder_plugins.serving.supervisor import Supervisor

folder, children = Path(sys.argv[1]), sys.argv[2:]
commands = [[sys.executable, "-c", child, str(folder), str(number)] for number, child in enumerate(children)]
listening = lambda engines: len(list(folder.glob("ready-*"))) >= engines
sys.exit(Supervisor(commands, {}, listening, stop_seconds=20).run())
"""
SERVE = """
import signal, sys, time
from pathlib import Path
folder, number = Path(sys.argv[1]), sys.argv[2]
def stop(*_):
    (folder / f"stopped-{number}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(folder / f"before-{number}-{len(list(folder.glob('ready-*')))}").touch()
(folder / f"ready-{number}").touch()
while True:
    time.sleep(0.05)
"""
DIE = "import sys; sys.exit(7)"
# a signal comes while the supervisor starts an engine that handles none yet
SIGNAL = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
STUBBORN = SERVE.replace("sys.exit(0)", "sys.exit(3)")


def supervise(folder: Path, *children: str) -> subprocess.Popen[bytes]:
    with (folder / "said").open("wb") as said:
        return subprocess.Popen([sys.executable, "-c", SUPERVISE, str(folder), *children], stderr=said)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


def test_they_start_in_turn_and_a_signal_stops_all(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, SERVE, SERVE)
    wait_for(tmp_path / "ready-2", process)
    assert sorted(path.name for path in tmp_path.glob("before-*")) == ["before-0-0", "before-1-1", "before-2-2"]
    process.terminate()
    assert process.wait(30) == 0
    assert len(list(tmp_path.glob("stopped-*"))) == 3


def test_when_one_dies_the_others_are_stopped_and_its_status_is_the_answer(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, DIE)
    assert process.wait(30) == 7
    assert "ended with 7" in (tmp_path / "said").read_text()
    assert (tmp_path / "stopped-0").exists()


@pytest.mark.parametrize("children", [(SERVE, SERVE), (SERVE,)])
def test_a_stop_before_all_have_started_is_a_stop(tmp_path: Path, children: tuple[str, ...]) -> None:
    process = supervise(tmp_path, *children)
    wait_for(tmp_path / "ready-0", process)
    process.terminate()
    assert process.wait(30) == 0
    assert (tmp_path / "stopped-0").exists()


@pytest.mark.parametrize("others", [0, 1])
def test_a_signal_during_the_start_of_an_engine_reaches_it(tmp_path: Path, others: int) -> None:
    process = supervise(tmp_path, *[SERVE] * others, SIGNAL)
    assert process.wait(30) == 0


def test_an_engine_that_fails_while_it_stops_is_a_failure(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, STUBBORN)
    wait_for(tmp_path / "ready-1", process)
    process.terminate()
    assert process.wait(30) == 1
