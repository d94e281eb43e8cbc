"""A driver for dynamic resource allocation on the node: Kubernetes' own test driver, deployed as vendors deploy theirs.

Its devices are names: what is tested is which pod requests one, which gets it, and which waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from encoder_node import extra_programs
from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.install import Platform
from encoder_platform.kube import POD, Body, Kube

CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
DRIVER = "test-driver.cdi.k8s.io"
DEVICE_CLASS = "encoder-device"
NAMESPACE = "device-driver"
NAME = "driver"

_SLICES = ("resource.k8s.io/v1", "ResourceSlice")
_PROGRAM = "/tmp/driver"
# where the kubelet looks for drivers, where they listen, and where the container runtime reads what a device is
_FOLDERS = {
    "registry": "/var/lib/kubelet/plugins_registry",
    "sockets": f"/var/lib/kubelet/plugins/{DRIVER}",
    "cdi": "/var/run/cdi",
}


def objects(image: str, devices: int) -> list[Body]:
    """The driver's pod, what it may do, and the class of its devices. Pure."""
    # from the driver's own example in Kubernetes' sources
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "verbs": ["associated-node:patch", "associated-node:update"],
            "resourceNames": [DRIVER],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
    ]
    mine = f"device.driver == '{DRIVER}'"
    meta = {"name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *manifests.account(NAME, NAMESPACE, rules),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": DEVICE_CLASS},
            "spec": {"selectors": [{"cel": {"expression": mine}}]},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _pod(image, devices)},
    ]


def _pod(image: str, devices: int) -> Body:
    options = f'kubelet-plugin --node-name="$NODE" --num-devices={devices}'
    container = manifests.program_container(NAME, image, _PROGRAM, options) | {
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        # the folders of a node are root's
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _FOLDERS.items()],
    }
    volumes = [
        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in _FOLDERS.items()
    ]
    return {
        "serviceAccountName": NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": volumes,
    }


def template(namespace: str, name: str, setting: str) -> Body:
    """A template of claims for one device; the driver sets the variable ``user_said`` of the containers that get one. Pure."""
    opaque = {"driver": DRIVER, "parameters": {"setting": setting}}
    devices = {
        "requests": [{"name": "one", "exactly": {"deviceClassName": DEVICE_CLASS}}],
        "config": [{"opaque": opaque}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": devices}},
    }


@contextmanager
def running(platform: Platform, devices: int) -> Iterator[None]:
    """Run the driver, with so many devices on the node, while the block runs."""
    kube, made = platform.kube, objects(platform.images["e2e"], devices)
    program = extra_programs.program("dra-test-driver")
    kube.apply(*made)
    try:
        wait_for("the driver's pod", lambda: _runs(kube), seconds=60)
        kube.upload(program, NAMESPACE, NAME, _PROGRAM)
        wait_for("the driver's devices", lambda: _offered(kube) == devices, seconds=60, check=partial(_alive, kube))
        yield
    finally:
        try:
            # a pod whose device nobody takes back never ends
            wait_for("devices given back", lambda: not kube.all(CLAIM, None), seconds=120)
        finally:
            _remove(kube, made)


def _remove(kube: Kube, made: list[Body]) -> None:
    # the pod first: it takes its sockets away while it may still speak
    for body in reversed(made):
        metadata = body["metadata"]
        kube.delete((body["apiVersion"], body["kind"]), metadata["name"], metadata.get("namespace"))
        if body["kind"] == "Pod":
            wait_for("the driver gone", lambda: kube.get(POD, NAME, NAMESPACE) is None, seconds=60)
    for entry in _slices(kube):
        kube.delete(_SLICES, entry["metadata"]["name"])


def _runs(kube: Kube) -> bool:
    pod = kube.get(POD, NAME, NAMESPACE) or {}
    return bool(pod.get("status", {}).get("phase") == "Running")


def _alive(kube: Kube) -> None:
    if not _runs(kube):
        raise RuntimeError(f"the driver has ended: {kube.run('-n', NAMESPACE, 'logs', NAME, check=False)[-2000:]}")


def _slices(kube: Kube) -> list[Body]:
    return [body for body in kube.all(_SLICES, None) if body["spec"]["driver"] == DRIVER]


def _offered(kube: Kube) -> int:
    return sum(len(entry["spec"].get("devices") or []) for entry in _slices(kube))
