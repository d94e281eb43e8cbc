"""A real Prometheus on this machine that reads the operator and the serving pods of a cluster, with the labels of the chart's PodMonitors."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_node import extra_programs
from encoder_node.free_port import free_port
from encoder_node.waiting import wait_for
from encoder_platform.install import OPERATOR_NAMESPACE, operator_pods
from encoder_platform.kube import POD, Body, Kube

SCRAPE_SECONDS = 5
_CONFIGURATION = """\
global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}
scrape_configs:
- job_name: pods
  file_sd_configs:
  - {{files: ["{targets}"], refresh_interval: 5s}}
"""
_OPERATOR_PORT, _SERVING_PORT = 8080, 8000
# no proxy of this machine lies on the way
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: Its labels.
        points: Time in seconds since 1970, and value.
    """

    labels: dict[str, str]
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server, by its address."""

    url: str

    def query(self, expression: str) -> list[Series]:
        """Return what an expression is now."""
        found = self._get("query", query=expression)["result"]
        return [Series(entry["metric"], [_point(entry["value"])]) for entry in found]

    def range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Return what an expression was between two times, every `step` seconds."""
        found = self._get("query_range", query=expression, start=start, end=end, step=step)["result"]
        return [Series(entry["metric"], [_point(value) for value in entry["values"]]) for entry in found]

    def _get(self, path: str, **parameters: str | float) -> Any:
        with _OPENER.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            with _OPENER.open(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


def _point(value: tuple[float, str]) -> tuple[float, float]:
    return float(value[0]), float(value[1])


def targets(operators: list[Body], serving: list[Body]) -> list[Body]:
    """Return what Prometheus reads, in the form of its file discovery, with the labels of the chart's PodMonitors. Pure."""
    found = []
    for pod, port, job in [
        *((pod, _OPERATOR_PORT, OPERATOR_NAMESPACE) for pod in operators),
        *((pod, _SERVING_PORT, f"{OPERATOR_NAMESPACE}-serving") for pod in serving),
    ]:
        metadata, address = pod["metadata"], pod["status"].get("podIP")
        labels = {"job": f"{OPERATOR_NAMESPACE}/{job}", "namespace": metadata["namespace"], "pod": metadata["name"]}
        for name in ("model", "revision"):
            if (value := metadata["labels"].get(f"encoders.dev/{name}")) is not None:
                labels[name] = value
        if address:
            found.append({"targets": [f"{address}:{port}"], "labels": labels})
    return found


@contextmanager
def running(kube: Kube, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus while the block lasts; pods that come and go are followed.

    Args:
        kube: The cluster, whose pods can be reached from this machine.
        folder: Configuration, log and data.
    """
    configuration, listed, port = folder / "prometheus.yaml", folder / "targets.json", free_port()
    configuration.write_text(_CONFIGURATION.format(interval=SCRAPE_SECONDS, targets=listed))

    def follow() -> None:
        serving = kube.all(POD, None, "encoders.dev/component=serving")
        part = folder / "targets.part"
        part.write_text(json.dumps(targets(operator_pods(kube), serving)))
        part.rename(listed)

    def follow_until_stopped() -> None:
        while not stopped.wait(SCRAPE_SECONDS):
            follow()

    follow()
    stopped = threading.Event()
    command = [
        str(extra_programs.program("prometheus")),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    thread = threading.Thread(target=follow_until_stopped, name="targets of Prometheus", daemon=True)
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process,
    ):
        server = Prometheus(f"http://127.0.0.1:{port}")
        try:
            wait_for("Prometheus", server.ready, seconds=60)
            thread.start()
            yield server
        finally:
            stopped.set()
            process.terminate()
    thread.join(30)
