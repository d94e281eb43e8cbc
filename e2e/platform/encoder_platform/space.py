"""A namespace of its own for one scenario on a cluster that runs pods, with a claim for artifacts and a client pod."""

import secrets
from dataclasses import dataclass
from typing import Any

from encoder_node.waiting import wait_for
from encoder_platform import client, install, manifests
from encoder_platform.kube import POD, Body, is_true
from encoder_platform.scene import ENGINE_SECONDS, Scene

ONE_THREAD = [{"name": "OMP_NUM_THREADS", "value": "1"}]


@dataclass(frozen=True, kw_only=True)
class Space(Scene):
    """One case's namespace on a cluster that runs pods, with a claim called artifacts and a client pod."""

    platform: install.Platform

    def manifest(
        self, name: str = "minilm", *, serving: Any = None, prepare: Any = None, **spec: Any
    ) -> manifests.Manifest:
        """An EncoderModel as in every scene, with one thread of torch in each process.

        Pods of several cases share the cores, and threads of torch that wait keep a core busy.
        """
        parts = {"serving": {"env": ONE_THREAD, **(serving or {})}, "prepare": {"env": ONE_THREAD, **(prepare or {})}}
        return super().manifest(name, **parts, **spec)

    def url(self, name: str = "minilm") -> str:
        """Where clients post to."""
        return f"http://{name}.{self.name}.svc/pooling"

    def wait_ready(self, name: str = "minilm", *, seconds: float = ENGINE_SECONDS) -> Body:
        """Wait with `kubectl wait`, and until the node knows the way to the model, too."""
        model = super().wait_ready(name, seconds=seconds)
        client.wait_open(self.kube, self.name, f"http://{name}.{self.name}.svc/health")
        return model

    def post(self, body: object, name: str = "minilm") -> client.Answer:
        """Post one body from the client pod."""
        return client.post(self.kube, self.name, self.url(name), body)


def make_space(platform: install.Platform, prefix: str) -> Space:
    """Make a namespace, its claim and its client pod."""
    kube = platform.kube
    name = f"{prefix}-{secrets.token_hex(3)}"
    space = Space(name, kube, platform.hub_revision, platform=platform)
    kube.apply(manifests.namespace(space.name))
    kube.apply(manifests.claim("artifacts", space.name), manifests.client_pod(platform.images["e2e"], space.name))
    wait_for("the client pod", lambda: is_true(kube.get(POD, "client", space.name), "Ready"), seconds=180)
    return space


def explain(space: Space) -> None:
    """Print what helps to find the cause of a failure."""
    for arguments in (
        ("get", "em,deploy,rs,job,pod,pvc,endpointslices,controllerrevisions", "-o", "wide"),
        ("get", "em", "-o", "jsonpath={range .items[*]}{.metadata.name}{' '}{.status}{'\\n'}{end}"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", "-l", "encoders.dev/model", "--all-containers", "--tail=40", "--prefix", "--ignore-errors"),
    ):
        print(f"--- kubectl {' '.join(arguments)}\n{space.kube.run('-n', space.name, *arguments, check=False)[-8000:]}")
    logs = space.kube.run(
        "-n", install.OPERATOR_NAMESPACE, "logs", "deploy/encoder-operator", "--tail=120", check=False
    )
    print(f"--- the operator\n{logs[-12000:]}")
