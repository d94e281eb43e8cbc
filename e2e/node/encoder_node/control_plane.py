"""A control plane alone: etcd, the API server and the controller manager as plain processes on loopback.

No kubelet, no namespaces of its own, no root: what only needs the API is tested here, side by side with whatever else runs on
the machine, in two seconds. Pods run in name only: the test patches their status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from encoder_node import configuration, programs
from encoder_node.api_server import ApiServer
from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.free_port import free_ports
from encoder_node.settings import DATA, Settings, load
from encoder_node.waiting import exclusive, wait_for

_ADDRESS = "127.0.0.1"
_CORRUPTIBLE = ("--unsafe-no-fsync", "--log-level=warn")


@dataclass(slots=True)
class ControlPlane:
    """A running control plane.

    Attributes:
        folder: where its data, certificates and logs are.
        bin_dir: the built programs, kubectl and helm among them.
        port: the API server's port on 127.0.0.1.
    """

    folder: Path
    bin_dir: Path
    port: int
    etcd_port: int
    peer_port: int
    settings: Settings
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "pki" / "super-admin.conf"

    @property
    def kubectl(self) -> Path:
        """The client of the same version."""
        return self.bin_dir / "kubectl"

    @property
    def helm(self) -> Path:
        """Helm, as pinned beside the cluster."""
        return self.bin_dir / "helm"

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{_ADDRESS}:{self.port}"

    def pid(self, name: str) -> int:
        """Returns the process id of a part: etcd, kube-apiserver or kube-controller-manager."""
        return self._running[name].pid

    def start_api_server(self) -> None:
        """Starts the API server and waits until it is ready."""
        self._launch("kube-apiserver", self._api_server())
        api = ApiServer(self.kubeconfig)
        try:
            self._wait("the API server", api.ready, "kube-apiserver")
        finally:
            api.close()

    def stop_api_server(self) -> None:
        """Kills the API server: every connection to it ends at once, etcd keeps what it has."""
        self._end("kube-apiserver")

    def restart_api_server(self) -> None:
        """Kills the API server and starts it again on the same port and the same data."""
        self.stop_api_server()
        self.start_api_server()

    def start_controllers(self) -> None:
        """Starts the controller manager."""
        self._launch("kube-controller-manager", self._controller_manager())

    def stop_controllers(self) -> None:
        """Kills the controller manager: Deployments make no pods, owners' children stay."""
        self._end("kube-controller-manager")

    def compact_etcd(self) -> None:
        """Forgets every version but the newest: a watch that goes on from an older one is answered 410.

        The API server keeps recent versions in its memory too; restart it to make it forget them.
        """
        # a read of anything returns the newest revision
        newest = self._etcd("kv/range", {"key": "AA=="})["header"]["revision"]
        self._etcd("kv/compaction", {"revision": newest, "physical": True})

    def kill(self) -> None:
        """Kills all of it."""
        for name in reversed(list(self._running)):
            self._end(name)

    def start(self, *, controllers: bool) -> None:
        """Makes certificates, and starts every part."""
        for name in ("pki", "etc", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._launch("etcd", self._etcd_arguments())
        self._certificates()
        self.start_api_server()
        if controllers:
            self.start_controllers()

    def _certificates(self) -> None:
        version = programs.Programs(self.settings).versions()[programs.KUBERNETES]
        marks = configuration.values(self.settings, self.bin_dir, {"PAUSE_IMAGE": "", "KUBERNETES": version})
        text = configuration.render((DATA / "kubeadm.yaml").read_text(), {**marks, "PKI": str(self.folder / "pki")})
        config = self.folder / "etc" / "kubeadm.yaml"
        config.write_text(text + f'apiServer: {{certSANs: ["{_ADDRESS}", localhost]}}\n')
        arguments = ["--config", str(config)]
        self._kubeadm(["init", "phase", "certs", "all", *arguments])
        for user in ("super-admin", "controller-manager"):
            folder = ["--kubeconfig-dir", str(self.folder / "pki")]
            self._kubeadm(["init", "phase", "kubeconfig", user, *arguments, *folder])
            file = self.folder / "pki" / f"{user}.conf"
            file.write_text(file.read_text().replace(f"https://{self.settings.network.node_ip}:6443", self.url))

    def _kubeadm(self, arguments: Sequence[str]) -> None:
        command = [str(self.bin_dir / "kubeadm"), *arguments]
        log = self.folder / "log" / "kubeadm.log"
        with log.open("ab") as output:
            code = subprocess.run(command, stdout=output, stderr=output, check=False, timeout=60).returncode
        if code != 0:
            raise CommandFailedError(command, code, log=log)

    def _etcd_arguments(self) -> tuple[str, ...]:
        client, peer = f"http://{_ADDRESS}:{self.etcd_port}", f"http://{_ADDRESS}:{self.peer_port}"
        return (
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *_CORRUPTIBLE,
        )

    def _api_server(self) -> tuple[str, ...]:
        own = {
            "--etcd-servers": f"http://{_ADDRESS}:{self.etcd_port}",
            "--bind-address": _ADDRESS,
            "--secure-port": str(self.port),
            # an API server wants an address that is not loopback; nobody connects to this one
            "--advertise-address": self.settings.network.node_ip,
            # nobody is to find this API server by the Service `kubernetes`
            "--endpoint-reconciler-type": "none",
        }
        return _with(self._moved(configuration.api_server(self.settings)), own)

    def _controller_manager(self) -> tuple[str, ...]:
        own = {
            "--secure-port": "0",
            # there is no kubelet whose silence would say that a node is gone
            "--controllers": "*,-node-lifecycle-controller,-node-ipam-controller,-taint-eviction-controller",
            "--allocate-node-cidrs": "false",
        }
        arguments = _with(self._moved(configuration.controller_manager(self.settings)), own)
        return tuple(item for item in arguments if not item.startswith("--cluster-cidr"))

    def _moved(self, component: configuration.Component) -> tuple[str, ...]:
        here, there = str(self.folder / "pki"), str(self.settings.paths.pki)
        return tuple(argument.replace(there, here) for argument in component.arguments)

    def _launch(self, name: str, arguments: Sequence[str]) -> None:
        log = self.folder / "log" / f"{name}.log"
        with log.open("ab") as output:
            # in a session of its own: a Ctrl-C is for the tests, which end it themselves; and not without them, however they end
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self.bin_dir / name), *arguments],
                # an eighth of an API server's processor time here was Go's collection of garbage; memory is not short
                env={**os.environ, "GOGC": "200"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _wait(self, what: str, ready: Any, name: str) -> None:
        log = self.folder / "log" / f"{name}.log"

        def alive() -> None:
            for part, process in self._running.items():
                if process.poll() is not None:
                    raise NodeError(f"{part} has ended with {process.returncode}", log=log.with_name(f"{part}.log"))

        wait_for(what, ready, seconds=self.settings.start_seconds, log=log, check=alive)

    def _etcd(self, path: str, body: Mapping[str, Any]) -> Any:
        address = f"http://{_ADDRESS}:{self.etcd_port}/v3/{path}"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@contextmanager
def running(folder: Path, *, controllers: bool = True) -> Iterator[ControlPlane]:
    """Runs a control plane while the block runs; programs that are not built yet are built first.

    Args:
        folder: for its data, certificates and logs; stays.
        controllers: whether a controller manager runs too.
    """
    settings = load()
    built = programs.Programs(settings)
    if not built.built:
        built.build()
    ports = settings.paths.cache / "ports.lock"
    with exclusive(ports, "choosing ports", seconds=settings.start_seconds):
        api, etcd, peer = free_ports(3, _ADDRESS)
        plane = ControlPlane(folder, built.folder, api, etcd, peer, replace(settings, start_seconds=120))
        try:
            plane.start(controllers=controllers)
        except BaseException:
            plane.kill()
            raise
    try:
        yield plane
    finally:
        plane.kill()


def _with(arguments: Sequence[str], own: Mapping[str, str]) -> tuple[str, ...]:
    kept = (item for item in arguments if item.partition("=")[0] not in own)
    return (*kept, *(f"{name}={value}" for name, value in own.items()))
