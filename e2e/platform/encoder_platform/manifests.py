"""Manifests that a user would write by hand: namespaces, the tests' hub, a client pod, an EncoderModel. Pure."""

from typing import Any

Manifest = dict[str, Any]

HUB_NAMESPACE = "hub"
HUB_ENDPOINT = f"http://hub.{HUB_NAMESPACE}.svc:8080"
REPOSITORY = "demo/all-MiniLM-L6-v2"
TOKEN = "hf_test_token"  # the hub's own test token: it opens nothing else

RESTRICTED: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
LOCKED_CONTAINER: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def namespace(name: str) -> Manifest:
    """A namespace in which only pods of the `restricted` security standard start."""
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def account(name: str, namespace: str, rules: list[Manifest]) -> list[Manifest]:
    """A ServiceAccount, and what it may do in the whole cluster."""
    names, rbac = {"name": name, "namespace": namespace}, "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", **names}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": names},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": namespace}, "rules": rules},
        binding,
    ]


def program_container(name: str, image: str, program: str, arguments: str) -> Manifest:
    """A container that waits until a program has been put into it, and becomes that."""
    wait = f"until [ -x {program} ]; do sleep 0.2; done; exec {program} {arguments}"
    return {"name": name, "image": image, "command": ["sh", "-c", wait], "workingDir": "/tmp"}


def claim(name: str, namespace: str, *, size: str = "2Gi", storage_class: str | None = None) -> Manifest:
    """A volume claim for artifacts; the cluster's default class unless another is named."""
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def local_volume(name: str, node: str, path: str, *, size: str) -> Manifest:
    """A volume that is a folder of a node, for claims of the class of the same name."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": path},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _pod_spec(image: str, container: Manifest, **more: Any) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": RESTRICTED,
        "containers": [{"image": image, "securityContext": LOCKED_CONTAINER, **container}],
        **more,
    }


def hub(image: str) -> list[Manifest]:
    """The tests' Hugging Face hub: one Deployment behind one Service."""
    labels = {"app": "hub"}
    metadata = {"name": "hub", "namespace": HUB_NAMESPACE}
    container = {
        "name": "hub",
        "ports": [{"containerPort": 8080}],
        # on a busy node an answer takes longer than the default second, and a hub without an endpoint fails every prep
        "readinessProbe": {"httpGet": {"path": "/api", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30},
        # without a share of its own it is silent for seconds while preps compute, which they take for a stall
        "resources": {"requests": {"cpu": "200m"}},
    }
    template = {"metadata": {"labels": labels}, "spec": _pod_spec(image, container)}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 8080, "targetPort": 8080}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


def client_pod(image: str, namespace: str, name: str = "client") -> Manifest:
    """A pod that only waits, for `kubectl exec`: it has curl and Python, and sees the namespace's artifacts."""
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "artifacts", "mountPath": "/artifacts", "readOnly": True}]
    volumes = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "artifacts", "persistentVolumeClaim": {"claimName": "artifacts"}},
    ]
    container = {"name": "client", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    spec = _pod_spec(image, container, volumes=volumes, restartPolicy="Never")
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def encoder_model(
    name: str,
    namespace: str,
    *,
    revision: str,
    repository: str = REPOSITORY,
    storage: Manifest | None = None,
    serving: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    """An EncoderModel of MiniLM from the tests' hub, served on the CPU; keyword arguments replace or add parts of the spec."""
    served = {
        "accelerator": "cpu",
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        **(serving or {}),
    }
    return {
        "apiVersion": "encoders.dev/v1alpha1",
        "kind": "EncoderModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "plugin": "sentence_transformer",
            "source": {"huggingFace": {"repo": repository, "revision": revision, "endpoint": HUB_ENDPOINT}},
            "storage": storage or {"claimName": "artifacts"},
            "serving": served,
            **spec,
        },
    }
