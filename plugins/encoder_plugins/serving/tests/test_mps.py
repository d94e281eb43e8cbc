"""The daemon of engines that share a GPU: a script stands in for NVIDIA's, and records how it was called. The real one: test_gpu_server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from encoder_plugins.serving import mps, signals

DAEMON = """#!/bin/sh
# as the real one: -d starts it, and commands come on standard input
if [ "$1" = -d ]; then
  test -d "$CUDA_MPS_PIPE_DIRECTORY" || exit 3
  test -d "$CUDA_MPS_LOG_DIRECTORY" || exit 4
  echo "start $CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
  echo "$CUDA_VISIBLE_DEVICES" > "$CALLS.gpus"
  sleep 60 &
  echo $! > "$CALLS.pid"
  exit ${STATUS:-0}
fi
read line
echo "$line $CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
kill "$(cat "$CALLS.pid")"
"""

# a driver of two GPUs
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetUuid(void *uuid, int device) { memset(uuid, 0xa0 + device, 16); return 0; }
"""


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """The environment of a host that has the daemon."""
    program = tmp_path / mps.CONTROL
    program.write_text(DAEMON, encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {name: value for name, value in os.environ.items() if name != mps.VISIBLE}
    return {**environment, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that a process can use only where the daemon's folder is known to it."""
    monkeypatch.setattr(mps, "PROBE", f"import os; assert os.path.isdir(os.environ['{mps.PIPES}'])")


def calls(host: dict[str, str]) -> list[str]:
    file = Path(host["CALLS"])
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@pytest.mark.usefixtures("gpu")
def test_a_daemon_runs_for_as_long_as_the_engines(host: dict[str, str]) -> None:
    with mps.shared_gpu(host) as variables:
        pipes = variables[mps.PIPES]
        assert variables.keys() == {mps.PIPES, mps.LOGS}
        assert calls(host) == [f"start {pipes}"]
        # nobody else of this machine may send work through it
        assert stat.S_IMODE(Path(pipes).parent.stat().st_mode) == 0o700
    assert calls(host) == [f"start {pipes}", f"quit {pipes}"]
    assert not Path(pipes).parent.exists()


@pytest.mark.usefixtures("gpu")
def test_it_ends_when_an_engine_fails(host: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="ill"), mps.shared_gpu(host):
        raise RuntimeError("an engine is ill")
    assert [line.split()[0] for line in calls(host)] == ["start", "quit"]


def test_it_ends_with_a_server_that_is_stopped_while_it_starts(host: dict[str, str]) -> None:
    script = """
import os, signal
from encoder_plugins.serving import mps, signals
signals.exit_on_sigterm()
mps.PROBE = "import os, signal, time; os.kill({}, signal.SIGTERM); time.sleep(60)".format(os.getpid())
with mps.shared_gpu(os.environ):
    raise AssertionError("the signal came before")
"""
    done = subprocess.run([sys.executable, "-c", script], env=host, capture_output=True, text=True, timeout=30)
    assert done.returncode == signals.ENDED, done.stderr
    assert [line.split()[0] for line in calls(host)] == ["start", "quit"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("1", "GPU-of-1"),
        ("2, 0", "GPU-of-2, 0"),
        ("GPU-5a909b49-588b-2ad8-c363-62e2c7efb9f6", "GPU-5a909b49-588b-2ad8-c363-62e2c7efb9f6"),
        ("MIG-6f5d3a1c-6a5c-5f2d-a0f3-52a0c1a5a3b0", "MIG-6f5d3a1c-6a5c-5f2d-a0f3-52a0c1a5a3b0"),
        ("", ""),
    ],
)
def test_the_daemon_and_the_engines_name_the_same_gpus(
    host: dict[str, str], monkeypatch: pytest.MonkeyPatch, given: str, seen: str
) -> None:
    # a number would be counted among all GPUs by the daemon, and among the daemon's by an engine
    monkeypatch.setattr(
        mps,
        "UUIDS",
        f"import os; assert {mps.PIPES!r} not in os.environ; print('GPU-of-' + os.environ[{mps.VISIBLE!r}])",
    )
    with mps.shared_gpu(host | {mps.VISIBLE: given}) as variables:
        assert variables.get(mps.VISIBLE, given) == seen
    assert Path(host["CALLS"] + ".gpus").read_text(encoding="utf-8").rstrip("\n") == seen


@pytest.mark.usefixtures("gpu")
def test_numbers_become_the_uuids_that_the_driver_has(host: dict[str, str], tmp_path: Path) -> None:
    (source := tmp_path / "driver.c").write_text(DRIVER, encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    with mps.shared_gpu(host | {mps.VISIBLE: "0,1", "LD_LIBRARY_PATH": str(tmp_path)}) as variables:
        assert variables[mps.VISIBLE] == ",".join(
            f"GPU-{digits * 4}-{digits * 2}-{digits * 2}-{digits * 2}-{digits * 6}" for digits in ("a0", "a1")
        )


@pytest.mark.usefixtures("gpu")
def test_numbers_stay_where_their_gpus_have_no_uuids(host: dict[str, str]) -> None:
    # without a driver, the real script fails
    with mps.shared_gpu(host | {mps.VISIBLE: "0"}) as variables:
        assert variables.keys() == {mps.PIPES, mps.LOGS}


def test_engines_take_turns_where_a_process_cannot_use_the_gpu_through_it(
    host: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mps, "PROBE", "import sys; sys.exit('CUDA error 805')")
    with mps.shared_gpu(host) as variables:
        assert variables == {}
        assert [line.split()[0] for line in calls(host)] == ["start", "quit"]
    assert "CUDA error 805" in capfd.readouterr().err


def test_the_probe_fails_where_there_is_no_gpu(host: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with mps.shared_gpu(host) as variables:
        assert variables == {}
    assert "take turns" in capfd.readouterr().err


@pytest.mark.usefixtures("gpu")
def test_engines_take_turns_where_it_does_not_start(host: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with mps.shared_gpu(host | {"STATUS": "1"}) as variables:
        assert variables == {}
    assert "status 1" in capfd.readouterr().err


@pytest.mark.parametrize("given", ["/a/daemon/of/the/cluster", ""])
def test_a_daemon_of_someone_else_is_left_alone(host: dict[str, str], given: str) -> None:
    with mps.shared_gpu(host | {mps.PIPES: given}) as variables:
        assert variables == {}
    assert calls(host) == []


def test_a_host_without_one_needs_none(host: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with mps.shared_gpu(host | {"PATH": "/nowhere"}) as variables:
        assert variables == {}
    assert capfd.readouterr().err == ""
