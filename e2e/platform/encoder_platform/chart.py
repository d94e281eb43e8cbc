"""Helm, of either generation, and the chart as it is now and as it was one version ago."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from encoder_node import extra_programs, programs
from encoder_node.settings import load

Body = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "encoder-operator"
# what `helm package` made of the chart before it had two modes; a clone need not have the history to build it from
(PREVIOUS,) = (ROOT / "e2e" / "chart" / "previous").glob("*.tgz")
RELEASE = NAMESPACE = "encoder-operator"
VERSIONS = ("helm", "helm3")


class HelmError(AssertionError):
    """Helm has refused; its words."""


@dataclass(frozen=True)
class Helm:
    """One helm.

    Attributes:
        program: the executable.
        environment: what it finds a cluster by.
    """

    program: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), hash=False, repr=False)

    def run(self, *arguments: str, values: Body | None = None, seconds: float = 120) -> str:
        """Run it with values of its own; returns what it prints.

        The chart of the checkout has the images of the node, unless the values set where they are.

        Raises:
            HelmError: It has refused.
        """
        if str(CHART) in arguments:
            values = {"localImages": True} | (values or {})
        with _file(values) as options:
            command = [str(self.program), *arguments, *options]
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise HelmError(done.stderr.strip())
        return done.stdout

    def render(self, values: Body | None = None, *, hooks: bool = True, chart: Path = CHART) -> list[Body]:
        """Return the objects that the chart becomes on the newest Kubernetes that we know."""
        more = () if hooks else ("--no-hooks",)
        cluster = ("--kube-version", programs.Programs(load()).versions()[programs.KUBERNETES])
        text = self.run("template", RELEASE, str(chart), "--namespace", NAMESPACE, *cluster, *more, values=values)
        return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]

    def upgrade(self, chart: Path, *more: str, values: Body | None = None) -> None:
        """Install the chart, or upgrade the release to it, without waiting for pods."""
        self.run("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, *more, values=values)


@contextmanager
def _file(values: Body | None) -> Iterator[tuple[str, ...]]:
    if values is None:
        yield ()
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        yield ("--values", file.name)


def helm(name: str = "helm", kubeconfig: Path | None = None) -> Helm:
    """Return `helm` (4, the node's) or `helm3`, built if they are not built yet."""
    if name == "helm":
        node = programs.Programs(load())
        if not node.built:
            node.build()
        program = node.folder / "helm"
    else:
        program = extra_programs.program(name)
    found = {} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)}
    return Helm(program, {**os.environ, **found})


def find(objects: list[Body], kind: str, name: str, namespace: str | None = None) -> Body:
    """Return the one object of this kind and name."""
    (found,) = (
        body
        for body in objects
        if body["kind"] == kind
        and body["metadata"]["name"] == name
        and namespace in (None, body["metadata"].get("namespace"))
    )
    return found


OnCluster = Callable[[Helm], Helm]
