"""A process that is still importing ends on SIGTERM, also where the signal came before it could listen."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# many short sleeps, as imports are many short calls: a signal between Python's look for one and a long sleep would wait for all of it
SLOW = "import sys, time\nprint(*sys.argv[1:], flush=True)\nfor _ in range(600):\n    time.sleep(0.1)\n"


def with_modules_in(folder: Path) -> dict[str, str]:
    """The environment of a process that finds modules of a test, and what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def test_the_module_runs_as_itself_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(
        "import sys\nprint(__name__, sys.argv[1:], sys.modules['__main__'].__spec__.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "encoder_plugins.serving.signals", "shown", "--port", "1"],
        env=with_modules_in(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "__main__ ['--port', '1'] shown\n"


def as_process_one(module: str, folder: Path) -> list[str]:
    # a PID namespace of its own: only there the kernel drops what nobody handles
    return [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        sys.executable,
        "-c",
        f"import os, signal; {module}",
        str(folder),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="making a PID namespace takes root")
@pytest.mark.parametrize("sent", ["while it imports", "before it could listen"])
def test_process_one_ends_at_once(tmp_path: Path, sent: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    early = "os.kill(os.getpid(), signal.SIGTERM);" if sent == "before it could listen" else ""
    start = (
        f"from encoder_plugins.serving.signals import hold_sigterm; hold_sigterm(); {early}"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'encoder_plugins.serving.signals', 'slow', 'imports'])"
    )
    process = subprocess.Popen(
        as_process_one(start, tmp_path),
        env=with_modules_in(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        if not early:
            assert process.stdout.readline() == "imports\n"
            child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            os.kill(int(child), signal.SIGTERM)
        assert process.wait(30) == 143  # as a shell gives it: 128 + SIGTERM
