"""The node's namespaces on this machine: making them, running programs in them, and removing every trace.

Whatever is started is recorded before it can do anything, and everything is inside of one process id namespace: ending
that ends all of it, pods included, and takes the mounts and links along.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from encoder_node import processes
from encoder_node.control_groups import ControlGroups
from encoder_node.errors import CommandFailedError, NodeError, WaitTimeoutError, WrongStateError
from encoder_node.settings import Settings
from encoder_node.waiting import wait_for

LAUNCHER = "sandbox"
INIT = "init"
CLAIM = "claim"
"""The file that says that something was made, and on which run of the machine."""


def entering(init: int, entrances: Sequence[Path], path: str) -> list[str]:
    """Returns what goes before a command so that it runs on the node.

    Args:
        init: The process id, on the machine, of the node's PID 1.
        entrances: The cgroup.procs files to join; `nsenter -C` joins the namespace but not the groups.
        path: The PATH inside.
    """
    join = "; ".join(f"echo $$ > {shlex.quote(str(entrance))}" for entrance in entrances)
    namespaces = ["nsenter", "-t", str(init), "-m", "-p", "-n", "-u", "-i", "-C", "-r", "-w"]
    return ["bash", "-c", f'{join}; exec "$@"', "-", *namespaces, "--", "env", "-i", f"PATH={path}", "HOME=/root"]


@dataclass(slots=True)
class Sandbox:
    """The place where the node runs."""

    settings: Settings
    programs: Path
    """Folder of the built programs."""
    started: dict[str, processes.Child] = field(default_factory=dict)
    """Components started by this very object, whose exit codes it knows."""

    @property
    def groups(self) -> ControlGroups:
        """The control groups of everything inside."""
        return ControlGroups(self.settings.name)

    @property
    def claimed(self) -> bool:
        """Whether there may be something on the machine that is ours."""
        return (self.settings.paths.run / CLAIM).exists()

    @property
    def init(self) -> int | None:
        """The process id, on the machine, of the node's PID 1; None if there is no node."""
        item = processes.records(self.settings.paths.run).get(INIT)
        return item.pid if item is not None and processes.alive(item) else None

    def create(self) -> None:
        """Makes the namespaces and connects them with the machine.

        Raises:
            WrongStateError: Groups or a link of that name are there and not ours.
            WaitTimeoutError: The namespaces did not come.
        """
        network, paths = self.settings.network, self.settings.paths
        if self.groups.exist() or Path("/sys/class/net", network.link).exists():
            raise WrongStateError(
                f"control group {self.settings.name} or link {network.link} exists: another node is up on this machine (with another cache?)"
            )
        # from here on there is something to clean up, and `down` must know
        claim = {"boot": processes.boot_id(), "controllers": self.groups.withheld()}
        (paths.run / CLAIM).write_text(json.dumps(claim))
        self.groups.create()
        self._launch()
        self._connect()

    def _launch(self) -> None:
        paths, log = self.settings.paths, self.settings.paths.log / "sandbox.log"
        script = paths.etc / "sandbox.sh"
        # all entrances are named to the launcher by the top folder: it may go deeper only in its second stage
        entrances = [str(folder / "cgroup.procs") for folder in self.groups.folders()]
        reading, writing = os.pipe()
        try:
            command = ["bash", str(script), "launch", str(paths.node), self.settings.name, *entrances]
            process = processes.spawn(command, log, stdin=reading)
            processes.record(LAUNCHER, process.pid, str(script)).write(paths.run)
            os.write(writing, b"go\n")
        finally:
            os.close(reading)
            os.close(writing)
        self.started[LAUNCHER] = process
        wait_for(
            "the node's namespaces",
            (paths.run / "ready").exists,
            seconds=self.settings.start_seconds,
            log=log,
            check=self.check,
        )
        processes.record(INIT, processes.children(process.pid)[0], str(script)).write(paths.run)

    def _connect(self) -> None:
        network, init = self.settings.network, self.init
        address = f"{network.host_ip}/24"
        _quiet(["ip", "link", "add", network.link, "type", "veth", "peer", "name", "eth0", "netns", str(init)])
        _quiet(["ip", "addr", "add", address, "dev", network.link])
        _quiet(["ip", "link", "set", network.link, "up"])
        inside = (
            f"ip addr add {network.node_ip}/24 dev eth0 && ip link set eth0 up && "
            f"ip route add default via {network.host_ip} && echo 1 > /proc/sys/net/ipv4/ip_forward"
        )
        self.run(["sh", "-c", inside])
        # so that tests on the machine reach pods and services
        for target in (network.pods, network.services):
            _quiet(["ip", "route", "add", target, "via", network.node_ip])

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns a command so that it runs on the node.

        Raises:
            WrongStateError: There is no node.
        """
        init = self.init
        if init is None:
            raise WrongStateError("the node is down; start it with `encoder_node up`")
        path = f"{self.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*entering(init, self.groups.entrances(), path), *command]

    def run(self, command: Sequence[str], *, stdin: IO[bytes] | None = None, seconds: float = 600) -> str:
        """Runs a command on the node and returns its output.

        Raises:
            CommandFailedError: It ended with an error.
            NodeError: It did not end in time.
        """
        source = subprocess.DEVNULL if stdin is None else stdin
        whole = self.command(command)
        try:
            answer = subprocess.run(whole, stdin=source, capture_output=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise NodeError(f"`{shlex.join(command)}` did not end within {seconds:g} s") from None
        if answer.returncode != 0:
            raise CommandFailedError(command, answer.returncode, answer.stderr.decode(errors="replace"))
        return answer.stdout.decode(errors="replace")

    def start(self, name: str, command: Sequence[str]) -> None:
        """Starts a component; it writes to its own log and lives on after this program."""
        process = processes.spawn(self.command(command), self.settings.paths.log / f"{name}.log")
        # nsenter waits for what it runs: its life is the component's
        processes.record(name, process.pid, command[0]).write(self.settings.paths.run)
        self.started[name] = process

    def stop(self, name: str, *, seconds: float = 10) -> None:
        """Ends a component that this object started, and waits until it is gone."""
        process = self.started.pop(name)
        for pid in processes.children(process.pid):
            os.kill(pid, signal.SIGTERM)
        log = self.settings.paths.log / f"{name}.log"
        wait_for(f"the end of {name}", lambda: process.poll() is not None, seconds=seconds, log=log)
        (self.settings.paths.run / f"{name}.json").unlink()

    def check(self) -> None:
        """Looks whether everything that this object started still runs.

        Raises:
            NodeError: Something has ended; the end of its log comes with it.
        """
        for name, process in list(self.started.items()):
            if process.poll() is not None:
                raise NodeError(f"{name} ended with {process.code}", log=self.settings.paths.log / f"{name}.log")

    def destroy(self) -> None:
        """Ends everything on the node, and removes its link and groups. Does nothing where nothing is."""
        if not self.claimed:
            return
        text = (self.settings.paths.run / CLAIM).read_text()
        # an empty file: `up` died while it wrote it, and had made nothing yet
        claim: dict[str, Any] = json.loads(text) if text else {"boot": None}
        if claim["boot"] == processes.boot_id():
            self._end_processes()
            subprocess.run(["ip", "link", "del", self.settings.network.link], capture_output=True, check=False)
            self.groups.remove()
            self.groups.take_back(claim["controllers"])
        self.started.clear()

    def _end_processes(self) -> None:
        found = processes.records(self.settings.paths.run)

        def gone() -> bool:
            # what this object started is its child, and stays in the process table until its status is collected
            for process in self.started.values():
                process.poll()
            return not self.groups.members() and not any(processes.alive(item) for item in found.values())

        # the kernel ends everything inside together with PID 1, and whatever waits for it outside ends by itself
        first = [found[name] for name in (INIT, LAUNCHER) if name in found]
        for item in [*self._unrecorded_init(found.get(LAUNCHER)), *first]:
            processes.kill(item)
        try:
            wait_for("the end of the node's processes", gone, seconds=10)
        except WaitTimeoutError:
            for item in found.values():
                processes.kill(item)
            wait_for("the end of the node's processes, killed one by one", gone, seconds=10)

    def _unrecorded_init(self, launcher: processes.Record | None) -> list[processes.Record]:
        # `up` may have died after the launcher went on and before it could note the launcher's child
        if launcher is None or not processes.alive(launcher):
            return []
        try:
            return [processes.record(INIT, pid, launcher.marker) for pid in processes.children(launcher.pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []


def _quiet(command: Sequence[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if answer.returncode != 0:
        raise CommandFailedError(command, answer.returncode, answer.stderr)
