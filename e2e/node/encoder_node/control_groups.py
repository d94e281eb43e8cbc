"""The node's own folder in every control group hierarchy, for cgroup v1 and v2.

All of the node is below it: its memory can be read, and nothing of it can hide.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_node.errors import WrongStateError

ROOT = Path("/sys/fs/cgroup")
LEAF = "system"
"""On v2, where the node's own processes are: a group with processes in it can't hand controllers to its children."""


def hierarchies_v1(proc_cgroup: str) -> list[str]:
    """Returns the folder names of the v1 hierarchies, from /proc/self/cgroup."""
    controllers = (line.split(":")[1] for line in proc_cgroup.splitlines())
    return [name.removeprefix("name=") for name in controllers if name]


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups of one node."""

    name: str
    root: Path = ROOT

    @property
    def unified(self) -> bool:
        """Whether this machine has cgroup v2 only."""
        return (self.root / "cgroup.controllers").exists()

    def folders(self) -> list[Path]:
        """Returns the node's folder in each hierarchy."""
        if self.unified:
            return [self.root / self.name]
        names = hierarchies_v1(Path("/proc/self/cgroup").read_text())
        return [self.root / name / self.name for name in names if (self.root / name).is_dir()]

    def entrances(self) -> list[Path]:
        """Returns the files that a process writes itself into to become part of the node."""
        return [
            folder / LEAF / "cgroup.procs" if self.unified else folder / "cgroup.procs" for folder in self.folders()
        ]

    def exist(self) -> bool:
        """Whether any of the folders is there."""
        return any(folder.exists() for folder in self.folders())

    def withheld(self) -> list[str]:
        """Returns the controllers that the machine does not hand to its groups yet; on v1 there is no such thing."""
        if not self.unified:
            return []
        given = (self.root / "cgroup.subtree_control").read_text().split()
        return [name for name in (self.root / "cgroup.controllers").read_text().split() if name not in given]

    def create(self) -> None:
        """Makes the folders, on v2 with every controller."""
        self._switch("+", self.withheld())
        for folder in self.folders():
            folder.mkdir(exist_ok=True)
            if folder.parent.name == "cpuset":
                # such a group takes no process before it has processors and memory
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (folder / setting).write_text((folder.parent / setting).read_text())
        if self.unified:
            (self.root / self.name / LEAF).mkdir(exist_ok=True)

    def take_back(self, controllers: Sequence[str]) -> None:
        """Undoes, on v2, what `create` did to the machine's own group."""
        with contextlib.suppress(OSError):
            # refused if another process uses them meanwhile
            self._switch("-", controllers)

    def _switch(self, sign: str, controllers: Sequence[str]) -> None:
        if controllers:
            (self.root / "cgroup.subtree_control").write_text(" ".join(sign + name for name in controllers))

    def members(self) -> set[int]:
        """Returns the ids of all processes in the groups, pods included."""
        found: set[int] = set()
        for folder in self.folders():
            for listing in folder.rglob("cgroup.procs") if folder.exists() else ():
                try:
                    found.update(int(pid) for pid in listing.read_text().split())
                except OSError:
                    # a group that has just gone, or a threaded one, whose processes its parent lists
                    continue
        return found

    def memory(self) -> int | None:
        """Returns the bytes of memory in use, without the page cache that can go at any time; None if unknown."""
        folder = self.root / self.name if self.unified else self.root / "memory" / self.name
        usage = folder / ("memory.current" if self.unified else "memory.usage_in_bytes")
        try:
            numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return int(usage.read_text()) - int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))
        except OSError:
            return None

    def remove(self, seconds: float = 5) -> None:
        """Removes the folders, the innermost first.

        Raises:
            WrongStateError: A folder was still in use at the end of the time.
        """
        end = time.monotonic() + seconds
        for folder in self.folders():
            while folder.exists():
                stuck = _remove_tree(folder)
                if stuck is None:
                    break
                if time.monotonic() > end:
                    raise WrongStateError(
                        f"control group {stuck} can't be removed: a process or a group is still in it"
                    )
                # the kernel lets go of a dead process's group a moment later
                time.sleep(0.02)


def _remove_tree(folder: Path) -> Path | None:
    stuck = None
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            stuck = Path(path)
    return stuck
