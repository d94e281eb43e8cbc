"""The programs of the cluster, built from Go modules: what there is to build, under which name, and the building.

The versions are in `tools/kubernetes/go.mod` and `tools/node/go.mod`; two modules, because helm wants a newer
k8s.io than Kubernetes itself. What is built lies in one folder per set of versions, so that switching back is free.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from encoder_node import prerequisites, progress, system_images
from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.settings import TOOLS, Settings
from encoder_node.waiting import exclusive

PAUSE_VERSION = "3.10.2"
"""What Kubernetes 1.36 says in build/pause/Makefile."""
PAUSE_IMAGE = f"localhost/pause:{PAUSE_VERSION}"
COREDNS = "github.com/coredns/coredns"
PINS = ("kubernetes/go.mod", "kubernetes/go.sum", "node/go.mod", "node/go.sum", "node/coredns/main.go")
"""The files of the folder `tools` that decide what is built."""
# Nobody debugs these programs, and a build is mostly compiling, which takes two thirds of the time without tables for debuggers and
# without inlining. The standard library is inlined: it is small, and programs spend much of their time in it
COMPILER_FLAGS = ("-gcflags=all=-dwarf=false -l", "-gcflags=std=-dwarf=false")
KUBERNETES = "k8s.io/kubernetes"


@dataclass(frozen=True, slots=True)
class Step:
    """One `go build`, and the line of progress that belongs to it.

    `stamp` lists linker variables that carry the version of `versioned`; without them a program says it is unreleased.
    """

    title: str
    module: str
    packages: tuple[str, ...]
    versioned: str
    stamp: tuple[str, ...] = ()
    name: str | None = None
    """The program's name where it is not the last part of its package's path."""
    static_c: bool = False
    """Uses C (libseccomp), linked statically. runc without seccomp starts no pod at all."""
    tags: tuple[str, ...] = field(default=(), repr=False)
    """Build tags that leave out parts. Only extra programs have any; the fingerprint of the others does not see them."""

    def outputs(self) -> tuple[str, ...]:
        """Returns the names of the programs that this step makes."""
        return (self.name,) if self.name else tuple(package.rsplit("/", 1)[1] for package in self.packages)


def _kubernetes(title: str, *programs: str) -> Step:
    packages = tuple(f"{KUBERNETES}/cmd/{program}" for program in programs)
    stamp = tuple(
        f"{package}.{variable}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable in ("gitVersion", "gitMajor", "gitMinor", "gitTreeState")
    )
    return Step(title, "kubernetes", packages, KUBERNETES, stamp)


_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins"
_BUILDKIT = "github.com/moby/buildkit"
_HELM = "helm.sh/helm/v4"

STEPS = (
    _kubernetes("kube-apiserver, kubectl", "kube-apiserver", "kubectl"),
    _kubernetes("kube-controller-manager, kube-scheduler", "kube-controller-manager", "kube-scheduler"),
    _kubernetes("kubelet, kube-proxy, kubeadm", "kubelet", "kube-proxy", "kubeadm"),
    Step(
        "containerd",
        "node",
        tuple(f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        _CONTAINERD,
        (f"{_CONTAINERD}/version.Version",),
    ),
    Step("runc", "node", ("github.com/opencontainers/runc",), "github.com/opencontainers/runc", static_c=True),
    Step(
        "CNI plugins",
        "node",
        tuple(f"{_CNI}/plugins/{name}" for name in ("ipam/host-local", "main/loopback", "main/ptp", "meta/portmap")),
        _CNI,
    ),
    Step("etcd", "node", ("go.etcd.io/etcd/server/v3",), "go.etcd.io/etcd/server/v3", name="etcd"),
    # a package of ours beside the go.mod: what the Corefile names, without the clients of clouds
    Step("CoreDNS", "node", ("./coredns",), COREDNS),
    Step("helm", "node", (f"{_HELM}/cmd/helm",), _HELM, (f"{_HELM}/internal/version.version",)),
    Step("BuildKit", "node", tuple(f"{_BUILDKIT}/cmd/{name}" for name in ("buildkitd", "buildctl")), _BUILDKIT),
    Step("kubeconform", "node", ("github.com/yannh/kubeconform/cmd/kubeconform",), "github.com/yannh/kubeconform"),
)


def module_versions(go_mod: str) -> dict[str, str]:
    """Returns the version that a go.mod requires of each module."""
    return dict(
        re.findall(r"^\s*(?:require )?([\w.~/-]+\.[\w.~/-]+) (v[\w.+-]+)(?: // indirect)?$", go_mod, re.MULTILINE)
    )


def stamp_value(variable: str, version: str) -> str:
    """Returns what a linker variable is set to for a version such as v1.36.3."""
    major, minor = version.removeprefix("v").split(".")[:2]
    return {"gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}.get(variable.rsplit(".", 1)[1], version)


def go_build(step: Step, folder: Path, version: str) -> list[str]:
    """Returns the command for one step; the programs go to `folder`."""
    linker = ["-s", "-w"]
    for variable in step.stamp:
        linker += ["-X", f"{variable}={stamp_value(variable, version)}"]
    tags = ["-tags", ",".join(step.tags)] if step.tags else []
    if step.static_c:
        linker += ["-extldflags", "-static"]
        tags = ["-tags", "seccomp,netgo,osusergo"]
    target = str(folder / step.name) if step.name else f"{folder}/"
    return [
        "go",
        "build",
        "-trimpath",
        *COMPILER_FLAGS,
        *tags,
        "-ldflags",
        " ".join(linker),
        "-o",
        target,
        *step.packages,
    ]


def fingerprint(files: Mapping[str, bytes]) -> str:
    """Returns the name of the folder for these files of `PINS` and this recipe."""
    digest = hashlib.sha256(repr((STEPS, COMPILER_FLAGS, PAUSE_VERSION, system_images.LAYOUT)).encode())
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name] + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder of built programs."""

    settings: Settings

    @property
    def folder(self) -> Path:
        """Where the programs of the pinned versions are, once built."""
        return self.settings.paths.bin / fingerprint({name: (TOOLS / name).read_bytes() for name in PINS})

    @property
    def built(self) -> bool:
        """Whether there is nothing to build."""
        # the folder gets its name only when everything is in it
        return self.folder.is_dir()

    def versions(self) -> dict[str, str]:
        """Returns the version of every module; of those in both, the node's."""
        found = module_versions((TOOLS / "kubernetes/go.mod").read_text())
        return {**found, **module_versions((TOOLS / "node/go.mod").read_text()), KUBERNETES: found[KUBERNETES]}

    def coredns_image(self) -> str:
        """Returns the name of the CoreDNS image that is built beside the programs."""
        return f"localhost/coredns:{self.versions()[COREDNS]}"

    def build(self) -> None:
        """Builds what is not built yet; an interrupted build goes on where it was.

        Raises:
            MissingPrerequisiteError: Go, a compiler or a header is not here and cannot be installed.
            CommandFailedError: A build failed; its log is named.
        """
        clock = progress.Clock()
        summary = f"kubernetes {self.versions()[KUBERNETES].removeprefix('v')}, containerd, etcd, helm, BuildKit …"
        if self.built:
            progress.say("tools", f"{summary} built", clock.seconds())
            return
        prerequisites.ensure(prerequisites.missing_go(), install=False)
        prerequisites.ensure(prerequisites.missing_programs(prerequisites.BUILD_PROGRAMS), install=True)
        with exclusive(self.settings.paths.bin / "lock", "building the programs", seconds=self.settings.build_seconds):
            if not self.built:
                self._build_all()
        progress.say("tools", f"{summary} built", clock.seconds())

    def _build_all(self) -> None:
        partial = self.folder.with_name(self.folder.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        versions = self.versions()
        progress.say("tools", f"{len(STEPS)} steps to build, of which the first takes the longest …")
        for step in STEPS:
            clock = progress.Clock()
            if all((partial / name).exists() for name in step.outputs()):
                continue
            self._go(step, partial, versions[step.versioned])
            progress.say("tools", f"{step.title} {versions[step.versioned]}", clock.seconds())
        clock = progress.Clock()
        self._images(partial)
        progress.say("tools", "images of pause and CoreDNS", clock.seconds())
        partial.rename(self.folder)

    def _go(self, step: Step, partial: Path, version: str) -> None:
        # the linker writes into the file itself: an interrupted one must not pass for a program
        scratch = partial / ".linking"
        scratch.mkdir(exist_ok=True)
        environment = {**os.environ, "CGO_ENABLED": "1" if step.static_c else "0", "GOFLAGS": "-mod=readonly"}
        self._execute(go_build(step, scratch, version), TOOLS / step.module, step.outputs()[0], environment)
        for name in step.outputs():
            (scratch / name).rename(partial / name)

    def _images(self, partial: Path) -> None:
        source = self.source_of_kubernetes() / "build/pause/linux/pause.c"
        compiler = [
            "gcc",
            "-Os",
            "-static",
            "-s",
            f"-DVERSION={PAUSE_VERSION}",
            "-o",
            str(partial / "pause"),
            str(source),
        ]
        self._execute(compiler, partial, "pause", dict(os.environ))
        for name, reference, user in (("pause", PAUSE_IMAGE, "65535:65535"), ("coredns", self.coredns_image(), "")):
            system_images.write(partial / f"{name}.tar", reference, partial / name, user=user)

    def source_of_kubernetes(self) -> Path:
        """Returns the folder with the sources that the programs are built from."""
        command = ["go", "list", "-m", "-f", "{{.Dir}}", KUBERNETES]
        answer = subprocess.run(
            command, cwd=TOOLS / "kubernetes", capture_output=True, text=True, check=False, timeout=300
        )
        if answer.returncode != 0 or not answer.stdout.strip():
            raise CommandFailedError(command, answer.returncode, answer.stderr)
        return Path(answer.stdout.strip())

    def _execute(self, command: Sequence[str], folder: Path, name: str, environment: Mapping[str, str]) -> None:
        execute(
            command, folder, self.settings.paths.bin / "log" / f"{name}.log", environment, self.settings.build_seconds
        )


def execute(command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str], seconds: float) -> None:
    """Runs a command of a build; what it prints goes to a log.

    Raises:
        CommandFailedError: It failed; the log is named.
        NodeError: It took too long.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Go's compiler spends a fourteenth of its time on collecting garbage, and a build has memory to spare
    environment = {"GOGC": "400", **environment}
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=seconds,
            ).returncode
        except subprocess.TimeoutExpired:
            raise NodeError(f"{log.stem}: not built after {seconds:g} s", log=log) from None
    if code != 0:
        raise CommandFailedError(command, code, log=log)
