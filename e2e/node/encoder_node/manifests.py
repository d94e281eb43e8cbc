"""The objects that `up` puts into a new cluster: cluster DNS, storage, and a permission that kubeadm leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoder_node.settings import Volumes

Manifest = dict[str, Any]

COREFILE = """\
.:53 {
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa {
        ttl 5
    }
    loadbalance
}
"""


def kubelet_client() -> list[Manifest]:
    """Returns what lets the API server call the kubelet for logs and exec.

    Since 1.36 the certificate that kubeadm makes for this carries no group any more.
    """
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "apiserver-kubelet-client"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:kubelet-api-admin",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver-kubelet-client"}
            ],
        }
    ]


def storage(volumes: Volumes, folder: Path, node: str) -> list[Manifest]:
    """Returns the default storage class and the volumes that claims of it are bound to.

    Args:
        volumes: How many and how large.
        folder: Where the volumes' folders are on the node.
        node: The node's `kubernetes.io/hostname`.
    """
    storage_class: Manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": volumes.storage_class,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Retain",
    }
    return [storage_class, *persistent_volumes(volumes, folder, node)]


def volume_names(volumes: Volumes) -> list[str]:
    """Returns the names of the volumes, which are those of their folders too."""
    return [f"local-{number:02}" for number in range(1, volumes.count + 1)]


def persistent_volumes(volumes: Volumes, folder: Path, node: str) -> list[Manifest]:
    """Returns the volumes. Local ones, because the kubelet gives a hostPath no fsGroup."""
    here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": volumes.size},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": volumes.storage_class,
                "local": {"path": str(folder / name)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
            },
        }
        for name in volume_names(volumes)
    ]


def cluster_dns(image: str, address: str) -> list[Manifest]:
    """Returns CoreDNS. It knows the cluster's names only and forwards nothing.

    Args:
        image: CoreDNS's image.
        address: The service's fixed address, which the kubelet writes into pods.
    """
    names = {"name": "coredns", "namespace": "kube-system"}
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": names},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"kind": "ServiceAccount", **names}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": {"Corefile": COREFILE}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": names, "spec": _dns_deployment(image)},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {
                "clusterIP": address,
                "selector": {"k8s-app": "kube-dns"},
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        },
    ]


def _dns_deployment(image: str) -> Manifest:
    container = {
        "name": "coredns",
        "image": image,
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"containerPort": 53, "name": "dns", "protocol": "UDP"},
            {"containerPort": 53, "name": "dns-tcp", "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    return {
        "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
        "template": {
            "metadata": {"labels": {"k8s-app": "kube-dns"}},
            "spec": {
                "serviceAccountName": "coredns",
                "dnsPolicy": "Default",
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
            },
        },
    }
