"""A server of ours as a process: started by the engine image's own command, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from encoder_node.free_port import free_port

START_SECONDS = 900
STOP_SECONDS = 100


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: Its address.
        process: The first of its processes.
    """

    url: str
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.process.poll() is None

    def resident_bytes(self) -> int:
        """Return the memory that it has in use, all processes together; shared pages count once for each."""
        return sum(map(_resident, _family(self.process.pid)))


@contextlib.contextmanager
def command(
    arguments: Sequence[str], url: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a command that serves ``url`` until the end of the block, from the moment it is healthy.

    Raises:
        RuntimeError: It ended before that; the message holds the end of its log.
    """
    with log.open("wb") as written:
        # a session of its own, so that all its processes can be found and ended
        process = subprocess.Popen(
            arguments,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if environment is None else {**os.environ, **environment},
        )
    try:
        asyncio.run(_healthy(url, process, log))
        yield Server(url, process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def served(
    artifact: Path, log: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Serve a prepared artifact on a free port, by ``encoder-plugins serve``; requests call the model ``bench``."""
    port = free_port()
    line = [sys.executable, "-m", "encoder_plugins", "serve", str(artifact), "--name", "bench", "--port", str(port)]
    with command([*line, *arguments], f"http://127.0.0.1:{port}", log, environment) as server:
        yield server


async def _healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
        while process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.2)
    raise RuntimeError(
        f"the server ended with {process.returncode} before it was healthy:\n{log.read_text(errors='replace')[-4000:]}"
    )


def _family(first: int) -> list[int]:
    """Return a process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                # the name, in brackets, may hold spaces
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [first]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def processor_seconds(first: int) -> float:
    """Return the processor time that a process and all that descend from it have taken."""
    ticks = 0
    for process in _family(first):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
