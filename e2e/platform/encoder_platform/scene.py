"""One namespace, and the words that scenarios about EncoderModels are written in. They need the API only."""

import json
from dataclasses import dataclass
from typing import Any

from encoder_node.errors import WaitTimeoutError
from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import DEPLOYMENT, JOB, MODELS, POD, Body, Kube, condition, is_true

# on two cores that other tests use, too
ENGINE_SECONDS = 480
CONDITION_SECONDS = 240


@dataclass(frozen=True)
class Scene:
    """A namespace in which EncoderModels are.

    Attributes:
        name: the namespace.
        kube: the cluster's API.
        revision: the source revision of models whose test names none.
    """

    name: str
    kube: Kube
    revision: str = "1" * 40

    def manifest(self, name: str = "minilm", **spec: Any) -> manifests.Manifest:
        """An EncoderModel of this namespace; keyword arguments as `manifests.encoder_model` takes them."""
        return manifests.encoder_model(name, self.name, **{"revision": self.revision, **spec})

    def apply_model(self, name: str = "minilm", **spec: Any) -> None:
        """Apply the EncoderModel of `manifest`."""
        self.kube.apply(self.manifest(name, **spec))

    def model(self, name: str = "minilm") -> Body:
        """The EncoderModel as it is now."""
        found = self.kube.get(MODELS, name, self.name)
        assert found is not None, f"EncoderModel {self.name}/{name} is gone"
        return found

    def patch(self, spec: Body, name: str = "minilm") -> None:
        """Change some of the spec, by merge patch."""
        self.kube.patch(MODELS, name, self.name, {"spec": spec})

    def patch_serving(self, serving: Body, name: str = "minilm") -> None:
        """Change some of `spec.serving`."""
        self.patch({"serving": serving}, name)

    def wait_ready(self, name: str = "minilm", *, seconds: float = ENGINE_SECONDS) -> Body:
        """Wait as a user does, with `kubectl wait`."""
        self.kube.run(
            *("-n", self.name, "wait", "--for=condition=Ready", f"em/{name}", f"--timeout={seconds:.0f}s"),
            seconds=seconds + 5,
        )
        return self.model(name)

    def wait_condition(
        self, kind: str, reason: str, name: str = "minilm", *, seconds: float = CONDITION_SECONDS
    ) -> Body:
        """Wait for a condition to have a reason, and return the condition."""

        def reached() -> Body | None:
            found = condition(self.model(name), kind)
            return found if found.get("reason") == reason else None

        try:
            return wait_for(f"{name}: {kind} with reason {reason}", reached, seconds=seconds)
        except WaitTimeoutError as late:
            raise AssertionError(f"{late}; {kind} is {condition(self.model(name), kind)}") from None

    def wait_current(self, kind: str, name: str = "minilm", *, seconds: float = ENGINE_SECONDS) -> Body:
        """Wait for a condition to be True for the newest generation."""
        wait_for(f"{name}: {kind}", lambda: is_true(self.model(name), kind), seconds=seconds)
        return self.model(name)

    def jobs(self, component: str, name: str = "minilm") -> list[Body]:
        """The model's Jobs of one component: prep or parity."""
        return self.kube.all(JOB, self.name, f"encoders.dev/model={name},encoders.dev/component={component}")

    def pods(self, name: str = "minilm", component: str = "serving") -> list[Body]:
        """The model's pods of one component, whatever state they are in."""
        return self.kube.all(POD, self.name, f"encoders.dev/model={name},encoders.dev/component={component}")

    def retry(self, value: str, name: str = "minilm") -> None:
        """Request another try, with `encoders.dev/retry`."""
        self.kube.patch(MODELS, name, self.name, {"metadata": {"annotations": {"encoders.dev/retry": value}}})

    def evict(self, pod: str) -> None:
        """Evict a pod through the API, as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.name}}
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/eviction"
        self.kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))

    def deployment(self, name: str = "minilm") -> Body | None:
        """The model's Deployment."""
        return self.kube.get(DEPLOYMENT, name, self.name)
