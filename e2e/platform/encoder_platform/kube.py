"""The API server through the official client: apply, get, delete, watch; and kubectl for what only kubectl does (exec, wait)."""

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import config, dynamic, watch
from kubernetes.client import ApiClient, ApiException
from kubernetes.dynamic.exceptions import NotFoundError
from urllib3.exceptions import HTTPError

from encoder_node.waiting import wait_for

Body = dict[str, Any]
MANAGER = "encoder-e2e"
MODELS = ("encoders.dev/v1alpha1", "EncoderModel")
SLICES = ("discovery.k8s.io/v1", "EndpointSlice")
POD, JOB, DEPLOYMENT, SECRET = ("v1", "Pod"), ("batch/v1", "Job"), ("apps/v1", "Deployment"), ("v1", "Secret")
REVISION = ("apps/v1", "ControllerRevision")
Kind = tuple[str, str]


@dataclass(frozen=True)
class Kube:
    """One cluster's API, by its kubeconfig.

    Attributes:
        kubeconfig: the file that names the cluster and holds the credentials.
        kubectl: the program; its folder also holds helm.
    """

    kubeconfig: Path
    kubectl: Path
    _api: dynamic.DynamicClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        client: ApiClient = config.new_client_from_config(str(self.kubeconfig))
        object.__setattr__(self, "_api", dynamic.DynamicClient(client))

    def _resource(self, kind: Kind) -> Any:
        return self._api.resources.get(api_version=kind[0], kind=kind[1])

    def apply(self, *manifests: Body) -> None:
        """Server-side apply, forced: what the suite says of an object wins."""
        for body in manifests:
            metadata = body["metadata"]
            self._resource((body["apiVersion"], body["kind"])).server_side_apply(
                body=body,
                name=metadata["name"],
                namespace=metadata.get("namespace"),
                field_manager=MANAGER,
                force_conflicts=True,
            )

    def patch(self, kind: Kind, name: str, namespace: str, patch: Body) -> None:
        """JSON merge patch."""
        self._resource(kind).patch(
            body=patch, name=name, namespace=namespace, content_type="application/merge-patch+json"
        )

    def patch_status(self, kind: Kind, name: str, namespace: str | None, status: Body) -> None:
        """Change parts of an object's status, as a controller or a kubelet does: conditions are merged by their type."""
        status_of = self._resource(kind).subresources["status"]
        strategic = "application/strategic-merge-patch+json"
        self._api.patch(status_of, body={"status": status}, name=name, namespace=namespace, content_type=strategic)

    def bind(self, pod: str, namespace: str, node: str) -> None:
        """Put a pod on a node, as the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        self._api.request("post", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body=body)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Body | None:
        """The object, or None where there is none."""
        try:
            found: Body = self._resource(kind).get(name=name, namespace=namespace).to_dict()
        except NotFoundError:
            return None
        return found

    def all(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Body]:
        """All objects of a kind in a namespace (None: in all), filtered by the server."""
        items: list[Body] = self._resource(kind).get(namespace=namespace, label_selector=selector).to_dict()["items"]
        return items

    def delete(self, kind: Kind, name: str, namespace: str | None = None, *, grace: int | None = None) -> None:
        """Delete in the background; nothing happens where the object is gone already.

        Args:
            kind: version and kind.
            name: its name.
            namespace: its namespace.
            grace: seconds that a pod gets; 0 is a kubelet's word that it has ended.
        """
        options = {} if grace is None else {"grace_period_seconds": grace}
        try:
            self._resource(kind).delete(name=name, namespace=namespace, **options)
        except NotFoundError:
            return

    @contextmanager
    def watching(self, kind: Kind, namespace: str, selector: str = "") -> Iterator[list[Body]]:
        """Collect every state of the selected objects while the block runs: watched, so that nothing between two looks is missed."""
        seen: list[Body] = []
        stopped, streaming = threading.Event(), threading.Event()

        def collect() -> None:
            version = None
            while not stopped.is_set():
                watcher, selected = watch.Watch(), {"namespace": namespace, "label_selector": selector}
                resource = self._resource(kind)
                try:
                    if version is None:
                        # a watch from nowhere would begin with these, in an order that is not that of their versions
                        found = resource.get(**selected).to_dict()
                        seen.extend(found["items"])
                        version = found["metadata"]["resourceVersion"]
                    streaming.set()
                    for event in resource.watch(**selected, resource_version=version, timeout=1, watcher=watcher):
                        seen.append(event["raw_object"])
                        # the next watch goes on from here
                        version = event["raw_object"]["metadata"]["resourceVersion"]
                except (ApiException, HTTPError, OSError):
                    # the API server is away, or has forgotten that version: from what is there then
                    version = None
                    stopped.wait(0.1)

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        streaming.wait(10)
        try:
            yield seen
        finally:
            stopped.set()
            thread.join(10)

    def run(self, *arguments: str, stdin: str | None = None, seconds: float = 60, check: bool = True) -> str:
        """Run kubectl and return its standard output."""
        done = subprocess.run(
            [str(self.kubectl), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment(),
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout if done.returncode == 0 else done.stderr

    def upload(self, program: Path, namespace: str, pod: str, target: str) -> None:
        """Put a program into a running pod; it is there under its name only when it is whole, and can be executed."""
        place = f"cat > {target}.part && chmod +x {target}.part && mv {target}.part {target}"
        command = [str(self.kubectl), "-n", namespace, "exec", "-i", pod, "--", "sh", "-c", place]
        with program.open("rb") as content:
            subprocess.run(command, stdin=content, env=self.environment(), check=True, timeout=120)

    def environment(self) -> Mapping[str, str]:
        """The environment in which kubectl and helm find this cluster."""
        # by websockets, a busy API server may close the connection before it has read a ping of kubectl, and the reset takes what the
        # command has printed: 5 of 80 commands that took 5 seconds, beside 20 busy processes; of 80 without websockets none
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}

    def rolled_out(self, name: str, namespace: str, *, seconds: float = 180) -> None:
        """Wait until every replica of a Deployment is available and of its newest template."""

        def ready() -> bool:
            found = self.get(DEPLOYMENT, name, namespace)
            if found is None:
                return False
            status, wanted = found.get("status", {}), found["spec"]["replicas"]
            if status.get("observedGeneration") != found["metadata"]["generation"]:
                return False
            # all of them: with a surge, those that are available may be the old ones
            counts = {status.get(name, 0) for name in ("replicas", "availableReplicas", "updatedReplicas")}
            return counts == {wanted}

        wait_for(f"Deployment {namespace}/{name} rolled out", ready, seconds=seconds)


def condition(body: Body | None, kind: str) -> Body:
    """One condition of an object's status; empty where it has none."""
    conditions = ((body or {}).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def is_true(body: Body | None, kind: str) -> bool:
    """Whether a condition is True for the generation that the object has now."""
    found = condition(body, kind)
    generation = (body or {}).get("metadata", {}).get("generation")
    return found.get("status") == "True" and found.get("observedGeneration", generation) == generation


def made(seen: Iterable[Body], label: str = "") -> list[str]:
    """Which objects there have been among states that were watched, by uid: those with a label, or all."""
    return sorted({body["metadata"]["uid"] for body in seen if not label or label in _labels(body)})


def _labels(body: Body) -> list[str]:
    return [f"{name}={value}" for name, value in (body["metadata"].get("labels") or {}).items()]


def refusal(error: ApiException) -> str:
    """The sentence with which the API server refused a request."""
    return str(json.loads(error.body)["message"])
