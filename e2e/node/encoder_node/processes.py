"""Which processes are ours: a record of each one started, and the check that a living one is still the same."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MOMENTS = 20
"""How often to look, 5 ms apart, for a command line that is being replaced."""


@dataclass(frozen=True, slots=True)
class Record:
    """What identifies a process that we started. A process id alone does not: the kernel uses it again."""

    name: str
    pid: int
    started: int
    """Clock ticks between the machine's start and the process's."""
    boot: str
    """The kernel's id of this run of the machine."""
    marker: str
    """A part of the command line that survives the program's own `exec`s."""

    def write(self, folder: Path) -> None:
        """Keeps the record; it is there in full or not at all."""
        scratch = folder / f".{self.name}.json"
        scratch.write_text(json.dumps(asdict(self)))
        scratch.rename(folder / f"{self.name}.json")


@dataclass(frozen=True, slots=True)
class Live:
    """What the kernel says about a process now."""

    started: int
    state: str
    command: str


def parse_stat(text: str) -> tuple[str, int]:
    """Returns (state, start in clock ticks) from /proc/PID/stat."""
    # the program's name is in parentheses and may hold anything, parentheses and spaces too
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def observe(pid: int) -> Live | None:
    """Returns what is known of a process, None if there is none (or only its remains, which wait for their parent)."""
    for _ in range(MOMENTS):
        try:
            state, started = parse_stat(Path(f"/proc/{pid}/stat").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        if state in "ZX":
            return None
        if command:
            break
        # in the middle of an exec there is no command line for a moment (and the kernel's own threads never have one)
        time.sleep(0.005)
    return Live(started, state, command)


def is_ours(record: Record, live: Live | None, boot: str) -> bool:
    """Whether the living process is the recorded one."""
    return live is not None and record.boot == boot and record.started == live.started and record.marker in live.command


def boot_id() -> str:
    """Returns the kernel's id of this run of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def record(name: str, pid: int, marker: str) -> Record:
    """Returns the record of a process just started by the caller, who has not waited for it yet."""
    # its parent has not collected it, so the entry is there even if the process has ended
    started = parse_stat(Path(f"/proc/{pid}/stat").read_text())[1]
    return Record(name, pid, started, boot_id(), marker)


def records(folder: Path) -> dict[str, Record]:
    """Returns the records in a folder by name."""
    found = (
        Record(**json.loads(file.read_text()))
        for file in sorted(folder.glob("*.json"))
        if not file.name.startswith(".")
    )
    return {item.name: item for item in found}


def alive(item: Record) -> bool:
    """Whether a recorded process still runs."""
    return is_ours(item, observe(item.pid), boot_id())


def kill(item: Record) -> bool:
    """Kills a recorded process if it still is the recorded one; says whether it did."""
    try:
        # the descriptor holds the identity: what is checked below is what gets the signal
        descriptor = os.pidfd_open(item.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(item):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


@dataclass(slots=True)
class Child:
    """A process that this program has started and that lives on after it: nobody waits for its end as for a Popen's."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while it runs."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # its status was collected elsewhere: it has ended, and how is not known any more
                self.code = 0
            else:
                self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def spawn(command: Sequence[str], log: Path, *, stdin: int | None = None) -> Child:
    """Starts a process in a session of its own, which writes to a log and reads a file descriptor, or nothing."""
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return Child(os.posix_spawnp(command[0], list(command), os.environ, file_actions=actions, setsid=True))


def children(pid: int) -> list[int]:
    """Returns the children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
