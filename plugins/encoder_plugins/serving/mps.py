"""NVIDIA's Multi-Process Service for engines that share a GPU.

Without it the GPU takes turns between the engines' processes: while a small kernel of one engine runs, the rest of the GPU is idle.
With it they run side by side. The daemon is this server's own: its sockets are in a private folder, and it ends with the engines.
It comes with the driver (the NVIDIA container toolkit mounts it); where there is none, or a process cannot use the GPU through it,
the engines take turns.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
# where a process finds the daemon; who sets it has a daemon of their own, or wants none
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
# which GPUs a process may use: their numbers, or their UUIDs
VISIBLE = "CUDA_VISIBLE_DEVICES"
# the daemon starts its server with the first process that uses the GPU
START_SECONDS = 60.0
STOP_SECONDS = 20.0

# a process of its own, without torch: writes the UUIDs of the GPUs that it sees, as the variable has them
UUIDS = """
import ctypes, sys, uuid
cuda = ctypes.CDLL("libcuda.so.1")
count, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
error, found = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)), []
for number in range(count.value):
    error = error or cuda.cuDeviceGetUuid(raw, number)
    found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
if error or not found:
    sys.exit(f"CUDA error {error}")
print(",".join(found))
"""
# and this one: what the driver says to a first context on each GPU that there is
PROBE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
count, context = ctypes.c_int(), ctypes.c_void_p()
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for number in range(count.value):
    error = error or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
sys.exit(f"CUDA error {error}" if error or not count.value else 0)
"""


@contextlib.contextmanager
def shared_gpu(environment: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Run a daemon until the end of the block, and yield the variables that lead a process to it; none where there is no daemon.

    Args:
        environment: Of the processes that will share the GPU.
    """
    control = shutil.which(CONTROL, path=environment.get("PATH"))
    if control is None or PIPES in environment:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="encoder-mps-", ignore_cleanup_errors=True) as folder:
        variables = {PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        for path in variables.values():
            Path(path).mkdir()
        variables |= _named_gpus(environment)
        whole = {**environment, **variables}
        with contextlib.ExitStack() as running:
            # a signal may end this process at any moment
            running.callback(_quit, control, whole)
            problem = _failure([control, "-d"], whole) or _failure([sys.executable, "-c", PROBE], whole)
            if problem is not None:
                running.close()
                print(f"engines take turns on the GPU, because {CONTROL} is of no use here: {problem}", file=sys.stderr)
            yield variables if problem is None else {}


def _named_gpus(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with UUIDs where it has numbers: the daemon counts the GPUs that it sees, and its processes would count those."""
    if not environment.get(VISIBLE, "").replace(",", "").replace(" ", "").isdigit():
        return {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [sys.executable, "-c", UUIDS],
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=True,
        )
        return {VISIBLE: done.stdout.strip()}
    return {}


def _failure(command: list[str], environment: Mapping[str, str]) -> str | None:
    """Return why a command failed; None where it did not."""
    try:
        # the daemon that it leaves behind would hold a pipe open
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=START_SECONDS
            )
            output.seek(0)
            words = output.read().decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else f"status {done.returncode}: {words[-300:]}"


def _quit(control: str, environment: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [control], env=environment, input=b"quit\n", stdout=subprocess.DEVNULL, timeout=STOP_SECONDS, check=False
        )
