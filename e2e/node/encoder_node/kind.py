"""The cluster on machines with Docker: kind, with the same storage and the same names of images as our own node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from encoder_node import image_store, manifests, prerequisites, progress, readiness, volumes
from encoder_node.api_server import ApiServer
from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.settings import Settings
from encoder_node.status import Status
from encoder_node.waiting import wait_for

NODE_IMAGE = "kindest/node:v1.36.1@sha256:3489c7674813ba5d8b1a9977baea8a6e553784dab7b84759d1014dbd78f7ebd5"
"""The node image that kind 0.32 brings; its minor version is that of our own node."""
VOLUMES = Path("/var/local/encoder-volumes")
"""Where the volumes' folders are on the node."""
PROGRAMS = ("kubectl", "helm")


def create_command(name: str, kubeconfig: Path) -> list[str]:
    """Returns the command that makes the cluster; its configuration comes by standard input."""
    target = ["--name", name, "--image", NODE_IMAGE, "--kubeconfig", str(kubeconfig)]
    return ["kind", "create", "cluster", *target, "--config", "-", "--wait", "120s"]


def configuration() -> str:
    """Returns kind's configuration. JSON is YAML."""
    return json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": [{"role": "control-plane"}]})


def export_command(name: str, kubeconfig: Path) -> list[str]:
    """Returns the command that writes the kubeconfig of a cluster that is there."""
    return ["kind", "export", "kubeconfig", "--name", name, "--kubeconfig", str(kubeconfig)]


def delete_command(name: str, kubeconfig: Path) -> list[str]:
    """Returns the command that removes the cluster; it is no error if there is none."""
    return ["kind", "delete", "cluster", "--name", name, "--kubeconfig", str(kubeconfig)]


def node_command(node: str, command: Sequence[str]) -> list[str]:
    """Returns a command of this machine that runs another one on the node."""
    return ["docker", "exec", "--interactive", node, *command]


def folders_command() -> list[str]:
    """Returns the command, for the node, that makes the volumes' folders; any user of any pod may write there."""
    return ["sh", "-c", 'mkdir -p "$@" && chmod 0777 "$@"', "-"]


def missing_programs() -> list[prerequisites.Missing]:
    """Returns the programs that kind's cluster needs and that are not on the PATH."""
    return [prerequisites.Missing(name) for name in ("kind", *PROGRAMS) if shutil.which(name) is None]


class KindCluster:
    """The cluster on machines with Docker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # kind's containerd is kind's own: none of the options that a newer or older one may lack
        self.store = image_store.ImageStore(self._run_on_node, client=("ctr",), import_options=())

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.settings.name

    @property
    def node_name(self) -> str:
        """Name of its one node."""
        return f"{self.settings.name}-control-plane"

    @property
    def bin_dir(self) -> Path:
        """The folder with `kubectl` and `helm`: links to the user's own."""
        return self.settings.paths.cache / "kind" / "bin"

    def kubeconfig(self) -> Path:
        """Returns the administrator's kubeconfig; the user's own is left alone."""
        return self.settings.paths.cache / "kind" / "kubeconfig"

    def build(self) -> None:
        """Looks for the programs and gets the node image.

        Raises:
            MissingPrerequisiteError: kind, kubectl or helm is not here.
        """
        prerequisites.ensure(missing_programs(), install=False)
        self.bin_dir.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            link = self.bin_dir / name
            link.unlink(missing_ok=True)
            link.symlink_to(str(shutil.which(name)))
        clock = progress.Clock()
        if subprocess.run(["docker", "image", "inspect", NODE_IMAGE], capture_output=True, check=False).returncode != 0:
            _execute(["docker", "pull", "--quiet", NODE_IMAGE], seconds=self.settings.build_seconds)
        progress.say("tools", f"kind, {', '.join(PROGRAMS)}, node image", clock.seconds())

    def up(self) -> None:
        """Makes the cluster and waits until it can be used; verifies one that is up.

        Raises:
            NodeError: A program failed or it took too long.
        """
        clock = progress.Clock()
        fresh = self.name not in _execute(["kind", "get", "clusters"]).split()
        if fresh:
            self.build()
            command = create_command(self.name, self.kubeconfig())
            _execute(command, seconds=600, text=configuration())
        else:
            _execute(export_command(self.name, self.kubeconfig()))
        api = ApiServer(self.kubeconfig())
        wait_for("node Ready", lambda: readiness.node_ready(api, self.node_name), seconds=120)
        # each time: an earlier `up` may have been interrupted before this
        self._provide_volumes(api)
        wait_for("the default ServiceAccount", lambda: readiness.service_account_ready(api), seconds=60)
        api.close()
        self.recycle_volumes()
        progress.say("cluster", "node Ready" if fresh else "node Ready (it was up)", clock.seconds())

    def _provide_volumes(self, api: ApiServer) -> None:
        names = manifests.volume_names(self.settings.volumes)
        self.run([*folders_command(), *(str(VOLUMES / name) for name in names)])
        # kind's own class of this name stays: a claim takes a volume that is there before a new one is provisioned
        for volume in manifests.persistent_volumes(self.settings.volumes, VOLUMES, self.node_name):
            api.apply(volume)

    def down(self) -> None:
        """Removes the cluster."""
        clock = progress.Clock()
        _execute(delete_command(self.name, self.kubeconfig()), seconds=120)
        self.kubeconfig().unlink(missing_ok=True)
        progress.say("cluster", "removed", clock.seconds())

    def status(self) -> Status:
        """Returns how the cluster is."""
        if self.name not in _execute(["kind", "get", "clusters"]).split() or not self.kubeconfig().exists():
            return Status(up=False, lines=("down",))
        api = ApiServer(self.kubeconfig())
        ready = readiness.node_ready(api, self.node_name)
        api.close()
        lines = ("node Ready" if ready else "up, but not usable", f"kubeconfig  {self.kubeconfig()}")
        return Status(up=ready, lines=lines)

    def load(self, archives: Sequence[Path]) -> None:
        """Puts images from archives on the node."""
        for archive in archives:
            self.import_image(archive)

    def import_image(self, source: Path | IO[bytes]) -> None:
        """Imports an image archive from a file or a stream (`docker save`)."""
        self.store.import_image(source)

    def images(self) -> dict[str, str]:
        """Returns the manifest digest of each image name on the node."""
        return self.store.images()

    def unpacked_chains(self) -> set[str]:
        """Returns the chain ids of the layers that the node has unpacked."""
        return self.store.unpacked_chains()

    def recycle_volumes(self) -> list[str]:
        """Empties the volumes whose claims are gone and offers them again; returns their names."""
        api = ApiServer(self.kubeconfig())
        try:
            return volumes.recycle(api, self.run, VOLUMES, manifests.volume_names(self.settings.volumes))
        finally:
            api.close()

    def run(self, command: Sequence[str]) -> str:
        """Runs a command on the node and returns its output."""
        return self._run_on_node(command)

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns a command of this machine that runs the given one on the node, with the caller's input and output."""
        return node_command(self.node_name, command)

    def _run_on_node(self, command: Sequence[str], *, stdin: IO[bytes] | None = None, seconds: float = 600) -> str:
        return _execute(node_command(self.node_name, command), seconds=seconds, stdin=stdin)


def _execute(
    command: Sequence[str], *, seconds: float = 120, text: str | None = None, stdin: IO[bytes] | None = None
) -> str:
    content = None if text is None else text.encode()
    source = {} if content is not None else {"stdin": subprocess.DEVNULL if stdin is None else stdin}
    try:
        answer = subprocess.run(  # type: ignore[call-overload]
            command, input=content, capture_output=True, check=False, timeout=seconds, env=os.environ, **source
        )
    except subprocess.TimeoutExpired:
        raise NodeError(f"`{' '.join(command)}` did not end within {seconds:g} s") from None
    if answer.returncode != 0:
        raise CommandFailedError(command, answer.returncode, answer.stderr.decode(errors="replace"))
    output: str = answer.stdout.decode(errors="replace")
    return output
