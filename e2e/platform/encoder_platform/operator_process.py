"""The operator as a process on this machine: the chart's settings and the chart's own account, against whichever API server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, Kube

NAME = NAMESPACE = "encoder-operator"
# Kopf imports the official client and structlog imports rich where they are, as for these tests and not in the operator's image
_AS_IN_THE_IMAGE = "import sys; sys.modules.update(kubernetes=None, rich=None)"
_LAST_LINES = 20
# a clock that is so many seconds wrong, for every part of the operator that reads the time of day
_CLOCK_WRONG_BY = "ENCODER_TEST_CLOCK_WRONG_BY"
_CLOCK = f"""
import datetime, os, time
import encoder_operator.manager.manager
wrong, right, real = float(os.environ[{_CLOCK_WRONG_BY!r}]), time.time, datetime.datetime
class Wrong(real):
    @classmethod
    def now(cls, tz=None):
        return real.fromtimestamp(right() + wrong, tz)
for name, module in list(sys.modules.items()):
    if name.startswith("encoder_operator.") and getattr(module, "datetime", None) is real:
        module.datetime = Wrong
time.time = lambda: right() + wrong
"""


class OperatorProcess:
    """One operator that can be started, killed, stopped and started again.

    Attributes:
        log: what all its lives have written.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0
        self.log = log

    def start(self, *, clock_wrong_by: float = 0, **extra: str) -> subprocess.Popen[bytes]:
        """Start it, with a clock that is so many seconds ahead; keyword arguments are added to its environment, for this life."""
        assert self.dead, "it runs already"
        self.log.touch()
        self._begin = self.log.stat().st_size
        program = "from encoder_operator.cli.main import main; sys.exit(main(['run']))"
        command = [sys.executable, "-c", "\n".join((_AS_IN_THE_IMAGE, _CLOCK if clock_wrong_by else "", program))]
        with self.log.open("ab") as output:
            environment = {**self._environment, _CLOCK_WRONG_BY: str(clock_wrong_by), **extra}
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        return self._process

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Its newest life."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def dead(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def check_alive(self) -> None:
        """Fail with the last lines of its log if it has ended, for a measurement whose folder is then removed."""
        if self.dead:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
            raise AssertionError(f"the operator ended with {self.process.returncode}; its log ends with\n{last}")

    async def watch_for_its_end(self) -> None:
        """Fail, as `check_alive` does, as soon as it ends; until then, wait."""
        while True:
            self.check_alive()
            await asyncio.sleep(0.5)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 6) -> int:
        """End it with SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def freeze(self) -> None:
        """Stop it with SIGSTOP: the process is there and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self, *, clock_wrong_by: float = 0, **extra: str) -> None:
        """Kill it where it runs, start it, and wait until it is ready."""
        if not self.dead:
            self.kill()
        self.start(clock_wrong_by=clock_wrong_by, **extra)
        self.wait_ready()

    def lines(self) -> list[dict[str, Any]]:
        """What this life has logged; a line that is not JSON comes as {"event": line}."""
        return [_parsed(line) for line in self.log.read_bytes()[self._begin :].decode(errors="replace").splitlines()]

    @property
    def port(self) -> int | None:
        """The port of its probes, once it serves them."""
        return next((line["port"] for line in self.lines() if line.get("event") == "started"), None)

    def get(self, path: str) -> tuple[int, str]:
        """GET /healthz, /readyz or /metrics; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path.lstrip('/')}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, ValueError):
            return 0, ""

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until it says that it is ready: as the leader it watches, as a stand-by it waits for the lease."""

        def ready() -> bool:
            self.check_alive()
            return self.port is not None and self.get("readyz")[0] == 200

        wait_for("the operator ready", ready, seconds=seconds, every=0.05)

    def resident(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


@contextmanager
def operator_process(kube: Kube, folder: Path, extra: Mapping[str, str] | None = None) -> Iterator[OperatorProcess]:
    """Yield an operator that is not started yet, with the environment of the chart's Deployment; it is ended with the block.

    Args:
        kube: a cluster on which the chart is.
        folder: for its kubeconfig and its log.
        extra: added to the environment of all its lives.
    """
    kubeconfig = folder / "operator.kubeconfig"
    kubeconfig.write_text(kubeconfig_of_the_operator(kube))
    # without a lease a killed one can be started again at once; the tests of the lease enable it
    own = {"KUBECONFIG": str(kubeconfig), "ENCODER_PORT": "0", "ENCODER_LEASE": "false"}
    environment = {**os.environ, **chart_environment(kube), **own, **(extra or {})}
    found = OperatorProcess(environment, folder / "operator.log")
    try:
        yield found
    finally:
        if not found.dead:
            found.thaw()
            found.kill()


def run_one_life(start: Callable[[], subprocess.Popen[bytes]], ready: Callable[[], bool], seconds: float = 240) -> bool:
    """Run one operator until it dies (True) or `ready` says that there is nothing left to do (False)."""
    process = start()

    def over() -> str | None:
        if process.poll() is not None:
            return "dead"
        return "done" if ready() else None

    how = wait_for("the operator dead or done", over, seconds=seconds)
    if how == "dead" and process.returncode != -signal.SIGKILL:
        raise AssertionError(f"the operator ended with {process.returncode} instead of being killed; see its log")
    return how == "dead"


def chart_environment(kube: Kube) -> dict[str, str]:
    """The environment that the chart gives the operator, without what only a pod can know."""
    deployment = kube.get(DEPLOYMENT, NAME, NAMESPACE)
    assert deployment is not None, "the chart is not installed"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item["value"] for item in container["env"] if item.get("value") is not None}


def kubeconfig_of_the_operator(kube: Kube) -> str:
    """A kubeconfig with a token of the chart's service account."""
    token = kube.run("-n", NAMESPACE, "create", "token", NAME, "--duration=10h").strip()
    config = json.loads(kube.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    user = {"name": "operator", "user": {"token": token}}
    context = {"name": "operator", "context": {"cluster": config["clusters"][0]["name"], "user": "operator"}}
    return yaml.safe_dump({**config, "users": [user], "contexts": [context], "current-context": "operator"})


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"event": line}
    return found if isinstance(found, dict) else {"event": line}
