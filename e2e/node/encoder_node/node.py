"""A real Kubernetes node made of processes on this machine, in namespaces of its own: no Docker, no outside network."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from encoder_node import (
    configuration,
    image_store,
    manifests,
    prerequisites,
    processes,
    programs,
    progress,
    readiness,
    system_images,
    volumes,
)
from encoder_node.api_server import ApiServer
from encoder_node.errors import CommandFailedError
from encoder_node.sandbox import Sandbox
from encoder_node.settings import DATA, Settings
from encoder_node.status import Status
from encoder_node.waiting import exclusive, wait_for


class NodeCluster:
    """The cluster on machines without Docker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.programs = programs.Programs(settings)
        self.sandbox = Sandbox(settings, self.programs.folder)
        self.store = image_store.ImageStore(
            self.sandbox.run,
            client=(str(self.programs.folder / "ctr"), "-a", configuration.SOCKET),
            # a layer is on the disk once, unpacked; only the older way of importing can do without the blobs
            import_options=("--local", "--discard-unpacked-layers"),
        )

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.settings.name

    @property
    def node_name(self) -> str:
        """Name of its one node."""
        return self.settings.name

    @property
    def bin_dir(self) -> Path:
        """The folder with `kubectl` and `helm`."""
        return self.programs.folder

    def kubeconfig(self) -> Path:
        """Returns the administrator's kubeconfig."""
        return self.settings.paths.kubeconfig

    def build(self) -> None:
        """Builds the programs, and installs what Debian has of the rest.

        Raises:
            MissingPrerequisiteError: This machine lacks something.
            NodeError: A build failed.
        """
        prerequisites.ensure(prerequisites.missing_system(self.settings.paths.cache), install=False)
        prerequisites.ensure(prerequisites.missing_programs(prerequisites.RUN_PROGRAMS), install=True)
        self.programs.build()

    def up(self) -> None:
        """Starts the node, or verifies the one that is up. Leaves a node that works, or nothing but logs.

        Raises:
            NodeError: Something is missing, failed, or took too long.
        """
        with self._exclusive("`up`"):
            clock = progress.Clock()
            if self._usable():
                self.recycle_volumes()
                progress.say("cluster", "node Ready, cluster DNS answers (it was up)", clock.seconds())
                return
            self._remove()
            if self.programs.built:
                prerequisites.ensure(prerequisites.missing_system(self.settings.paths.cache), install=False)
                prerequisites.ensure(prerequisites.missing_programs(prerequisites.RUN_PROGRAMS), install=False)
            else:
                self.build()
            try:
                self._start()
            except BaseException:
                # also when interrupted: half a node helps nobody, and the logs stay
                self._remove()
                raise

    def down(self) -> None:
        """Ends the node and removes its state. Logs and images stay."""
        with self._exclusive("`down`"):
            clock = progress.Clock()
            was = self.sandbox.claimed
            self._remove()
            progress.say("cluster", "removed" if was else "was not up", clock.seconds())

    def status(self) -> Status:
        """Returns how the node is, component by component."""
        found = processes.records(self.settings.paths.run)
        if not found:
            return Status(up=False, lines=("down",))
        dead = [name for name, item in found.items() if not processes.alive(item)]
        usable = self._usable()
        memory = self.sandbox.groups.memory()
        lines = [
            "node Ready, cluster DNS answers" if usable else "up, but not usable",
            f"components  {', '.join(name for name in found if name not in dead) or 'none'}",
            *([f"ended       {', '.join(dead)} (logs in {self.settings.paths.log})"] if dead else []),
            *([f"memory      {memory / 2**30:.2f} GiB"] if memory is not None else []),
            f"kubeconfig  {self.kubeconfig()}",
            f"programs    {self.bin_dir}",
            f"logs        {self.settings.paths.log}",
        ]
        return Status(up=usable, lines=tuple(lines))

    def load(self, archives: Sequence[Path]) -> None:
        """Puts images from archives on the node."""
        for archive in archives:
            self.import_image(archive)

    def import_image(self, source: Path | IO[bytes]) -> None:
        """Imports an image archive from a file or a stream; layers that the node has unpacked may be absent from it."""
        self.store.import_image(source)

    def unpacked_chains(self) -> set[str]:
        """Returns the chain ids of the layers that the node has unpacked."""
        return self.store.unpacked_chains()

    def images(self) -> dict[str, str]:
        """Returns the manifest digest of each image name on the node."""
        return self.store.images()

    def recycle_volumes(self) -> list[str]:
        """Empties the volumes whose claims are gone and offers them again; returns their names."""
        api = ApiServer(self.kubeconfig())
        try:
            names = manifests.volume_names(self.settings.volumes)
            return volumes.recycle(api, self.run, self.settings.paths.volumes, names)
        finally:
            api.close()

    def run(self, command: Sequence[str]) -> str:
        """Runs a command on the node and returns its output."""
        return self.sandbox.run(command)

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns a command of this machine that runs the given one on the node, with the caller's input and output."""
        return self.sandbox.command(command)

    def _exclusive(self, what: str) -> AbstractContextManager[None]:
        return exclusive(self.settings.paths.cache / "node.lock", what, seconds=self.settings.build_seconds)

    def _usable(self) -> bool:
        paths = self.settings.paths
        found = processes.records(paths.run)
        # the file is written when `up` has done everything
        if not (paths.run / "up").exists() or not all(processes.alive(item) for item in found.values()):
            return False
        api = ApiServer(paths.kubeconfig)
        try:
            return readiness.node_ready(api, self.node_name) and readiness.dns_answers(self.settings.network.dns_ip)
        finally:
            api.close()

    def _remove(self) -> None:
        paths = self.settings.paths
        self.sandbox.destroy()
        for folder in (paths.var, paths.pki, paths.etc, paths.run):
            if folder.exists():
                shutil.rmtree(folder)

    def _start(self) -> None:
        clock = progress.Clock()
        self._prepare()
        self.sandbox.create()
        with ThreadPoolExecutor(max_workers=2) as pool:
            certificates = pool.submit(self._certificates)
            containerd = pool.submit(self._containerd)
            self._control_plane(certificates)
            api = ApiServer(self.settings.paths.kubeconfig)
            self._wait("API server ready", api.ready, "kube-apiserver")
            for component in (configuration.controller_manager(self.settings), configuration.scheduler(self.settings)):
                self._launch(component)
            containerd.result()
        for component in (configuration.kubelet(self.settings), configuration.kube_proxy(self.settings)):
            self._launch(component)
        self._furnish(api)
        self._wait("node Ready", lambda: readiness.node_ready(api, self.node_name), "kubelet")
        progress.say("cluster", "node Ready", clock.seconds())
        self._wait(
            "the default ServiceAccount", lambda: readiness.service_account_ready(api), "kube-controller-manager"
        )
        self._wait("cluster DNS", lambda: readiness.dns_answers(self.settings.network.dns_ip), "kubelet")
        progress.say("cluster", "cluster DNS answers", clock.seconds())
        api.close()
        (self.settings.paths.run / "up").touch()

    def _prepare(self) -> None:
        paths = self.settings.paths
        if paths.log.exists():
            shutil.rmtree(paths.log)
        for folder in (
            paths.etc,
            paths.pki,
            paths.run,
            paths.var / "log",
            paths.log / "pods",
            paths.containerd,
            paths.volumes,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        for name in manifests.volume_names(self.settings.volumes):
            folder = paths.volumes / name
            folder.mkdir()
            # any user of any pod; mkdir's own mode is subject to the umask
            folder.chmod(0o777)
        version = self.programs.versions()[programs.KUBERNETES]
        marks = configuration.values(
            self.settings, self.programs.folder, {"PAUSE_IMAGE": programs.PAUSE_IMAGE, "KUBERNETES": version}
        )
        for file, text in configuration.files(DATA, marks).items():
            target = paths.etc / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def _certificates(self) -> None:
        paths = self.settings.paths
        config = ["--config", str(paths.etc / "kubeadm.yaml")]
        self._kubeadm(["init", "phase", "certs", "all", *config])
        self._kubeadm(["init", "phase", "kubeconfig", "all", *config, "--kubeconfig-dir", str(paths.pki)])
        proxy = self._kubeadm(["kubeconfig", "user", *config, "--client-name", "system:kube-proxy"])
        (paths.pki / "proxy.conf").touch(mode=0o600)
        (paths.pki / "proxy.conf").write_text(proxy)

    def _kubeadm(self, arguments: Sequence[str]) -> str:
        command = [str(self.programs.folder / "kubeadm"), *arguments]
        log = self.settings.paths.log / "kubeadm.log"
        with log.open("ab") as output:
            answer = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=output,
                check=False,
                timeout=self.settings.start_seconds,
                env=os.environ,
            )
        if answer.returncode != 0:
            raise CommandFailedError(command, answer.returncode, log=log)
        return answer.stdout.decode()

    def _containerd(self) -> None:
        """Starts containerd twice if there may be leftovers: once to remove them, while it serves no pods."""
        root = self.settings.paths.containerd
        image_store.remove_leftovers(root)
        if any(root.iterdir()):
            self._launch(configuration.containerd(self.settings, sweep=True))
            self._wait("containerd (to clean up)", self.store.answers, "containerd")
            self.store.sweep()
            self.sandbox.stop("containerd")
        self._launch(configuration.containerd(self.settings))
        self._wait("containerd", self.store.answers, "containerd")
        present = self.store.images()
        for name, reference in (("pause", programs.PAUSE_IMAGE), ("coredns", self.programs.coredns_image())):
            archive = self.programs.folder / f"{name}.tar"
            if present.get(reference) != system_images.digest(archive):
                self.store.import_image(archive)

    def _control_plane(self, certificates: Future[None]) -> None:
        self._launch(configuration.etcd(self.settings))
        certificates.result()
        self._launch(configuration.api_server(self.settings))

    def _furnish(self, api: ApiServer) -> None:
        objects = [
            *manifests.kubelet_client(),
            *manifests.cluster_dns(self.programs.coredns_image(), self.settings.network.dns_ip),
            *manifests.storage(self.settings.volumes, self.settings.paths.volumes, self.node_name),
        ]
        for item in objects:
            api.apply(item)

    def _launch(self, component: configuration.Component) -> None:
        self.sandbox.start(component.name, [str(self.programs.folder / component.name), *component.arguments])

    def _wait(self, what: str, ready: Callable[[], bool], component: str) -> None:
        log = self.settings.paths.log / f"{component}.log"
        wait_for(what, ready, seconds=self.settings.start_seconds, log=log, check=self.sandbox.check)
