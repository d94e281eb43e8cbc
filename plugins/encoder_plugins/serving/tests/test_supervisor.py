"""Several processes that look like one: started in turn, signalled together, ended together. Real processes, of some lines each."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encoder_plugins.serving.command import SHUTDOWN_SECONDS
from encoder_plugins.serving.supervisor import STOP_SECONDS

# the supervisor needs the main thread's signal handlers: it gets a process of its own, as in a pod
SUPERVISE = """
import os, signal, sys, time
from pathlib import Path
from encoder_plugins.serving import supervisor

folder, stop_before, children = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
class Clock:
    # fails where a loop goes round without a pause, which would take a core
    rounds = rounds_with_all = 0
    def sleep(self, seconds):
        self.rounds_with_all += len(list(folder.glob("ready-*"))) == len(children)
        if self.rounds_with_all == 2:
            print("all were ready a round ago", flush=True)
        time.sleep(seconds)
        self.rounds = 0
    def monotonic(self):
        self.rounds += 1
        # the end of the wait is computed before the first round
        assert self.rounds <= 2, "no pause between two rounds"
        return time.monotonic()
supervisor.time = clock = Clock()
commands = [[sys.executable, "-c", child, str(folder), str(number)] for number, child in enumerate(children)]
def listening(engines):
    clock.monotonic()
    ready = len(list(folder.glob("ready-*"))) >= engines
    if ready and engines == stop_before:
        os.kill(os.getpid(), signal.SIGTERM)
    return ready
sys.exit(supervisor.Supervisor(commands, {}, listening, stop_seconds=float(os.environ["STOP_SECONDS"])).run())
"""
SERVE = """
import signal, sys
from pathlib import Path
folder, number = Path(sys.argv[1]), sys.argv[2]
def stop(*_):
    (folder / f"stopped-{number}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
(folder / f"before-{number}-{len(list(folder.glob('ready-*')))}").touch()
(folder / f"ready-{number}").touch()
print("ready", number, flush=True)
while True:
    signal.pause()
"""
# a child that has not installed its signal handlers yet
START = """
import signal, sys
print("starting", sys.argv[2], flush=True)
signal.pause()
"""
# a child that needs a second signal, as an engine whose first drains
STUBBORN = """
import os, signal, sys
signals = []
def stop(*_):
    signals.append(1)
    # not print: the signal may come while the line below is being printed
    os.write(1, f"received {len(signals)}\\n".encode())
    if len(signals) == 2:
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready 0", flush=True)
while True:
    signal.pause()
"""
# an engine that drains, as its API server does in a process of its own
PARENT = """
import signal, subprocess, sys
# blocked in both processes: a signal that comes early waits for sigwait
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
code = "import signal; print('ready', flush=True); signal.sigwait({signal.SIGINT}); print('received', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", code])
signal.sigwait({signal.SIGINT})
child.send_signal(signal.SIGINT)
signal.pause()
"""
DIE = "import sys; sys.exit({})"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
# a child that no signal ends but the last one
DEAF = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
print("deaf", sys.argv[2], flush=True)
while True:
    signal.pause()
"""
# a child that fails while it stops
FAILING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("failing", sys.argv[2], flush=True)
while True:
    signal.pause()
"""
NEVER = -1


def supervise(
    folder: Path, *children: str, stop_before: int = NEVER, stop_seconds: float = 20
) -> subprocess.Popen[str]:
    """Start a supervisor; with `stop_before`, it receives SIGTERM in the moment before it starts that child."""
    command = [sys.executable, "-c", SUPERVISE, str(folder), str(stop_before), *children]
    environment = os.environ | {"STOP_SECONDS": str(stop_seconds)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (found := process.stdout.readline().strip()) != line:
        assert found, f"the supervisor ended before {line!r}"


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status and what was written to standard error."""
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def test_they_start_in_turn_and_a_signal_stops_all(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, SERVE, SERVE)
    wait_for_line(process, "ready 2")
    # in a round after the last start, nothing more is started
    wait_for_line(process, "all were ready a round ago")
    assert sorted(path.name for path in tmp_path.glob("before-*")) == ["before-0-0", "before-1-1", "before-2-2"]
    process.terminate()
    assert finish(process) == (0, "")
    assert len(list(tmp_path.glob("stopped-*"))) == 3


# an engine that ends by itself has failed, whatever it says
@pytest.mark.parametrize(("ended", "expected"), [(7, 7), (0, 1)])
def test_when_one_dies_the_others_are_stopped_and_its_status_is_returned(
    tmp_path: Path, ended: int, expected: int
) -> None:
    process = supervise(tmp_path, SERVE, DIE.format(ended))
    status, errors = finish(process)
    assert status == expected
    assert f"ended with {ended}" in errors
    assert (tmp_path / "stopped-0").exists()


def test_a_stop_while_the_second_has_no_signal_handler_yet_is_a_stop(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, START)
    wait_for_line(process, "starting 1")
    process.terminate()
    assert finish(process) == (0, "")
    assert (tmp_path / "stopped-0").exists()


@pytest.mark.parametrize("stop_before", [0, 1])
def test_after_a_signal_nothing_is_started(tmp_path: Path, stop_before: int) -> None:
    status, errors = finish(supervise(tmp_path, SERVE, SERVE, stop_before=stop_before))
    assert (status, errors) == (0, "")
    assert len(list(tmp_path.glob("stopped-*"))) == len(list(tmp_path.glob("ready-*"))) == stop_before


def test_a_second_signal_is_forwarded_too(tmp_path: Path) -> None:
    process = supervise(tmp_path, STUBBORN)
    wait_for_line(process, "ready 0")
    process.terminate()
    wait_for_line(process, "received 1")
    process.terminate()
    assert finish(process) == (0, "")


def test_a_second_interrupt_kills_an_engine_with_its_processes(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, PARENT)
    wait_for_line(process, "ready")
    process.send_signal(signal.SIGINT)
    # the first one lets the engines finish, and one of them has done so
    wait_for_line(process, "received")
    end = time.monotonic() + 30
    while not (tmp_path / "stopped-0").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    # its end of the pipe is closed when the grandchild is gone, too
    assert finish(process) == (1, "")


def test_one_that_a_signal_killed_makes_the_status_one(tmp_path: Path) -> None:
    status, errors = finish(supervise(tmp_path, SERVE, KILLED))
    assert status == 1
    assert "ended with -9" in errors
    # the others had their time to stop
    assert (tmp_path / "stopped-0").exists()


def test_one_that_does_not_stop_in_time_is_killed_and_the_status_says_so(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, DEAF, stop_seconds=1)
    wait_for_line(process, "deaf 1")
    begin = time.monotonic()
    process.terminate()
    status, _ = finish(process)
    assert status == 1
    assert time.monotonic() - begin >= 1
    deaf = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while alive(deaf):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_that_ends_badly_after_the_signal_is_no_stop(tmp_path: Path) -> None:
    process = supervise(tmp_path, SERVE, FAILING)
    wait_for_line(process, "failing 1")
    process.terminate()
    assert finish(process)[0] == 1
    assert (tmp_path / "stopped-0").exists()


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_engines_may_take_as_long_as_a_drain_and_end_before_the_pod_is_killed() -> None:
    # the operator's grace period has 90 seconds
    assert SHUTDOWN_SECONDS < STOP_SECONDS < 90
