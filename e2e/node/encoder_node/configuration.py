"""From settings to configuration files and command lines. Nothing here touches the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from encoder_node.errors import NodeError
from encoder_node.settings import Settings

SOCKET = "/run/containerd/containerd.sock"
"""containerd's socket. The node's /run is its own, so it has the usual name."""
ETCD = "http://127.0.0.1:2379"
CRI_PLUGINS = ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


@dataclass(frozen=True, slots=True)
class Component:
    """A program of the node that runs as long as the node does."""

    name: str
    arguments: tuple[str, ...]


def values(settings: Settings, programs: Path, images: Mapping[str, str]) -> dict[str, str]:
    """Returns what the templates' `@NAME@` marks stand for.

    Args:
        settings: The cluster.
        programs: The folder of the built programs.
        images: `PAUSE_IMAGE`, and `KUBERNETES`, the version.
    """
    paths, network = settings.paths, settings.network
    return {
        "NAME": settings.name,
        "NODE_IP": network.node_ip,
        "PODS": network.pods,
        "NODE_PODS": network.node_pods,
        "SERVICES": network.services,
        "DNS_IP": network.dns_ip,
        "BIN": str(programs),
        "ETC": str(paths.etc),
        "PKI": str(paths.pki),
        "VAR": str(paths.var),
        "LOG": str(paths.log),
        "CONTAINERD": str(paths.containerd),
        "SOCKET": SOCKET,
        "DISABLED": "",
        **images,
    }


def render(template: str, marks: Mapping[str, str]) -> str:
    """Returns a template with its marks replaced.

    Raises:
        NodeError: The template has a mark that nothing stands for.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] not in marks:
            raise NodeError(f"template mark @{found[1]}@ has no value; known are {', '.join(sorted(marks))}")
        return marks[found[1]]

    return re.sub(r"@([A-Z_]+)@", value, template)


def files(templates: Path, marks: Mapping[str, str]) -> dict[str, str]:
    """Returns every configuration file by its path below the folder for them.

    containerd gets two: with the second it serves no pods, which is how leftovers of an earlier node are removed.
    """
    sources = {
        str(source.relative_to(templates)): source.read_text() for source in templates.rglob("*") if source.is_file()
    }
    rendered = {name: text if name.endswith(".sh") else render(text, marks) for name, text in sources.items()}
    without_pods = "".join(f', "{plugin}"' for plugin in CRI_PLUGINS)
    rendered["containerd-sweep.toml"] = render(sources["containerd.toml"], {**marks, "DISABLED": without_pods})
    return rendered


def containerd(settings: Settings, *, sweep: bool = False) -> Component:
    """Returns containerd; with `sweep`, the one that serves no pods."""
    name = "containerd-sweep.toml" if sweep else "containerd.toml"
    return Component("containerd", ("--config", str(settings.paths.etc / name)))


def etcd(settings: Settings) -> Component:
    """Returns etcd. Its data need not survive a power cut, so it does not wait for the disk."""
    return Component(
        "etcd",
        (
            f"--data-dir={settings.paths.var}/etcd",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
    )


def api_server(settings: Settings) -> Component:
    """Returns the API server; the policies that the chart ships need no switch in 1.36."""
    pki, network = settings.paths.pki, settings.network
    return Component(
        "kube-apiserver",
        (
            f"--etcd-servers={ETCD}",
            f"--bind-address={network.node_ip}",
            f"--advertise-address={network.node_ip}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={network.services}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
            # else logs and exec look the node's name up, which no name server knows
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
        ),
    )


def _kubeconfigs(file: Path) -> tuple[str, ...]:
    return tuple(f"--{kind}={file}" for kind in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"))


def controller_manager(settings: Settings) -> Component:
    """Returns the controller manager."""
    pki, network = settings.paths.pki, settings.network
    return Component(
        "kube-controller-manager",
        (
            *_kubeconfigs(pki / "controller-manager.conf"),
            "--bind-address=127.0.0.1",
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/sa.key",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={network.pods}",
            f"--service-cluster-ip-range={network.services}",
            "--leader-elect=false",
            "--pvclaimbinder-sync-period=1s",
            "--horizontal-pod-autoscaler-sync-period=2s",
            "--node-monitor-grace-period=20s",
            # the default limits make the first ServiceAccount wait for 8 s
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ),
    )


def scheduler(settings: Settings) -> Component:
    """Returns the scheduler."""
    kubeconfigs = _kubeconfigs(settings.paths.pki / "scheduler.conf")
    return Component("kube-scheduler", (*kubeconfigs, "--bind-address=127.0.0.1", "--leader-elect=false"))


def kubelet(settings: Settings) -> Component:
    """Returns the kubelet."""
    paths = settings.paths
    return Component(
        "kubelet",
        (
            f"--config={paths.etc}/kubelet.yaml",
            f"--kubeconfig={paths.pki}/kubelet.conf",
            f"--root-dir={paths.var}/kubelet",
            f"--cert-dir={paths.var}/kubelet/pki",
            f"--node-ip={settings.network.node_ip}",
            f"--hostname-override={settings.name}",
        ),
    )


def kube_proxy(settings: Settings) -> Component:
    """Returns the program that makes services reachable."""
    return Component("kube-proxy", (f"--config={settings.paths.etc}/kube-proxy.yaml",))
