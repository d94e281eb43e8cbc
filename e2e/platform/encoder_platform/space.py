"""A namespace of its own for one scenario, with a claim for artifacts and a client pod, and the words that scenarios are written in."""

import secrets
from dataclasses import dataclass

from encoder_platform import client, install, manifests
from encoder_platform.kube import JOB, MODELS, POD, Body, Kube, condition, is_true
from encoder_platform.waiting import wait_for


@dataclass(frozen=True)
class Space:
    """One case's namespace, with a claim called artifacts and a client pod."""

    name: str
    platform: install.Platform

    @property
    def kube(self) -> Kube:
        """The cluster's API."""
        return self.platform.kube

    def apply_model(self, name: str = "minilm", **spec: object) -> None:
        """Apply an EncoderModel; keyword arguments as `manifests.encoder_model` takes them."""
        revision = spec.pop("revision", self.platform.hub_revision)
        self.kube.apply(manifests.encoder_model(name, self.name, revision=str(revision), **spec))  # type: ignore[arg-type]

    def model(self, name: str = "minilm") -> Body:
        """The EncoderModel as it is now."""
        found = self.kube.get(MODELS, name, self.name)
        assert found is not None, f"EncoderModel {self.name}/{name} is gone"
        return found

    def patch_serving(self, serving: Body, name: str = "minilm") -> None:
        """Change some of `spec.serving`."""
        self.kube.patch(MODELS, name, self.name, {"spec": {"serving": serving}})

    def wait_ready(self, name: str = "minilm", *, seconds: float = 240) -> Body:
        """Wait as a user does, with `kubectl wait`."""
        self.kube.run(
            *("-n", self.name, "wait", "--for=condition=Ready", f"em/{name}", f"--timeout={seconds:.0f}s"),
            seconds=seconds + 5,
        )
        return self.model(name)

    def wait_condition(self, kind: str, reason: str, name: str = "minilm", *, seconds: float = 120) -> Body:
        """Wait for a condition to have a reason, and return the condition."""

        def reached() -> Body | None:
            found = condition(self.model(name), kind)
            return found if found.get("reason") == reason else None

        try:
            return wait_for(f"{name}: {kind} with reason {reason}", reached, seconds=seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}; {kind} is {condition(self.model(name), kind)}") from None

    def wait_current(self, kind: str, name: str = "minilm", *, seconds: float = 240) -> Body:
        """Wait for a condition to be True for the newest generation."""
        wait_for(f"{name}: {kind}", lambda: is_true(self.model(name), kind), seconds=seconds)
        return self.model(name)

    def jobs(self, component: str, name: str = "minilm") -> list[Body]:
        """The model's Jobs of one component: prep or parity."""
        return self.kube.all(JOB, self.name, f"encoders.dev/model={name},encoders.dev/component={component}")

    def pods(self, name: str = "minilm") -> list[Body]:
        """The model's serving pods, whatever state they are in."""
        return self.kube.all(POD, self.name, f"encoders.dev/model={name},encoders.dev/component=serving")

    def url(self, name: str = "minilm") -> str:
        """Where clients post to."""
        return f"http://{name}.{self.name}.svc/pooling"

    def ask(self, body: object, name: str = "minilm") -> client.Answer:
        """Post one body from the client pod."""
        return client.post(self.kube, self.name, self.url(name), body)


def make_space(platform: install.Platform, prefix: str) -> Space:
    """Make a namespace, its claim and its client pod."""
    space = Space(f"{prefix}-{secrets.token_hex(3)}", platform)
    kube = platform.kube
    kube.apply(manifests.namespace(space.name))
    kube.apply(manifests.claim("artifacts", space.name), manifests.client_pod(platform.images["e2e"], space.name))
    wait_for("the client pod", lambda: is_true(kube.get(POD, "client", space.name), "Ready"), seconds=60)
    return space


def explain(space: Space) -> None:
    """Print what a person would look at first."""
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
