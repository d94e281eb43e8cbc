"""`encoder-operator doctor`: check whether the cluster has what the operator needs, and say how to fix what is missing.

The checks use the credentials that the command runs with. Inside the operator's pod those are the operator's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import crd
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.controller.namespaces import SelectedNamespaces
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json

_READ = ("get", "list", "watch")
# API group, resource and verbs that the operator uses in each namespace that it serves
PERMISSIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("encoders.dev", "encodermodels", _READ),
    ("encoders.dev", "encodermodels/status", ("patch",)),
    ("apps", "deployments", (*_READ, "create", "patch")),
    ("apps", "replicasets", ("list",)),
    ("apps", "controllerrevisions", ("get", "list", "create", "patch", "delete")),
    ("batch", "jobs", (*_READ, "create", "patch", "delete")),
    ("", "pods", _READ),
    ("", "pods/status", ("patch",)),
    ("", "pods/log", ("get",)),
    ("", "services", (*_READ, "create", "patch")),
    ("", "persistentvolumeclaims", ("get", "create", "patch")),
    ("", "configmaps", ("get",)),
    ("", "events", ("create", "list")),
    ("policy", "poddisruptionbudgets", ("get", "list", "create", "patch", "delete")),
    ("networking.k8s.io", "networkpolicies", ("get", "list", "create", "patch", "delete")),
)
ROUTES = ("gateway.networking.k8s.io", "httproutes", ("get", "list", "create", "patch", "delete"))
NAMESPACES = ("", "namespaces", _READ)
LEASES = ("coordination.k8s.io", "leases", ("get", "create", "update"))
_GPU = "nvidia.com/gpu"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: `wrong` prevents the operator from working; `note` does not.
        text: What was found.
        remedy: What the user can do about it.
    """

    level: Literal["ok", "note", "wrong"]
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return the finding as it is printed."""
        return f"{self.level:<6}{self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")


async def run_checks(client: Client, settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings. The API server comes first because every other check depends on it."""
    try:
        served = await client.has_resource(naming.GROUP, naming.VERSION, naming.PLURAL)
    except ApiServerError as error:
        yield Finding(
            "wrong", f"the API server cannot be reached: {error}", "check the kubeconfig, or the KUBECONFIG variable"
        )
        return
    yield Finding("ok", "the API server is reachable")
    if served:
        yield await _check_crd(client)
    else:
        yield Finding(
            "wrong",
            f"the API server does not serve {naming.KIND}s",
            "install the chart with crds.install, or apply `encoder-operator crd --print`",
        )
    for namespace in settings.namespaces or [""]:
        async for finding in _check_permissions(client, settings, namespace):
            yield finding
    if settings.selects_namespaces:
        yield await _check_selected_namespaces(client, settings)
    yield await _check_storage(client)
    yield await _check_accelerators(client)


async def _check_crd(client: Client) -> Finding:
    live = await client.get_schema(naming.GROUP, naming.VERSION, naming.KIND)
    wanted = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    missing = sorted(_paths(wanted["properties"]["spec"]) - _paths(live.get("properties", {}).get("spec", {})))
    if not missing:
        return Finding("ok", "the CustomResourceDefinition has every field of this version")
    shown = ", ".join(f"spec.{path}" for path in missing[:5])
    return Finding(
        "wrong",
        f"the CustomResourceDefinition belongs to another version; missing fields: {shown}{' …' if len(missing) > 5 else ''}",
        "apply `encoder-operator crd --print` of this version, or upgrade the chart with crds.install",
    )


async def _check_permissions(client: Client, settings: Settings, namespace: str) -> AsyncIterator[Finding]:
    wanted = [(group, resource, verbs, namespace) for group, resource, verbs in PERMISSIONS]
    if await client.has_resource("gateway.networking.k8s.io", "v1", "httproutes"):
        wanted.append((*ROUTES, namespace))
    if not settings.namespaced:
        wanted.append(("", "nodes", ("get",), ""))
    if settings.selects_namespaces:
        wanted.append((*NAMESPACES, ""))
    if settings.lease:
        wanted.append((*LEASES, settings.lease_namespace))
    missing = []
    for group, resource, verbs, where in wanted:
        name, _, sub = resource.partition("/")
        for verb in verbs:
            attributes = {"group": group, "resource": name, "subresource": sub, "verb": verb, "namespace": where}
            if resource == "leases" and verb != "create":
                attributes["name"] = settings.lease_name
            if not await client.can_i(attributes):
                missing.append(f"{verb} {resource}{'.' + group if group else ''}")
    scope = f"namespace {namespace}" if namespace else "all namespaces"
    if not missing:
        yield Finding("ok", f"all required permissions are granted in {scope}")
    for text in missing:
        yield Finding(
            "wrong", f"missing permission in {scope}: {text}", "upgrade the chart: its role grants this permission"
        )


async def _check_selected_namespaces(client: Client, settings: Settings) -> Finding:
    namespaces = SelectedNamespaces(client, settings)
    try:
        await namespaces.refresh()
    except ApiServerError as error:
        return Finding(
            "wrong", f"cannot list Namespaces: {error}", "upgrade the chart: its role grants this permission"
        )
    names = sorted(namespaces.served)
    if not names:
        return Finding(
            "note",
            "the labels of no namespace match watch.namespaceSelector",
            "label a namespace, or change the selector in the chart's values",
        )
    shown = ", ".join(names[:5])
    return Finding("ok", f"namespaces that are served: {shown}{' …' if len(names) > 5 else ''} ({len(names)})")


async def _check_storage(client: Client) -> Finding:
    try:
        classes = (await client.list_with_version("StorageClass", None, {})).items
    except ApiServerError as error:
        return Finding(
            "note", f"cannot list StorageClasses: {error}", "run this command with an administrator's kubeconfig"
        )
    default = [c for c in classes if (c["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"]
    if default:
        return Finding("ok", f"the default StorageClass is {default[0]['metadata']['name']}")
    return Finding(
        "note",
        "no StorageClass is marked as the default" if classes else "the cluster has no StorageClass",
        "set spec.storage.create.storageClassName, or use an existing PersistentVolumeClaim, in each EncoderModel",
    )


async def _check_accelerators(client: Client) -> Finding:
    try:
        nodes = (await client.list_with_version("Node", None, {})).items
    except ApiServerError as error:
        return Finding("note", f"cannot list Nodes: {error}", "run this command with an administrator's kubeconfig")
    with_gpu = [node for node in nodes if int((node.get("status") or {}).get("allocatable", {}).get(_GPU, 0))]
    if not with_gpu:
        return Finding(
            "note",
            f"none of {len(nodes)} nodes offers {_GPU}",
            "install the NVIDIA device plugin, or set spec.serving.accelerator: cpu",
        )
    unlabelled = [n for n in with_gpu if naming.GPU_PRODUCT_LABEL not in (n["metadata"].get("labels") or {})]
    if unlabelled:
        return Finding(
            "note",
            f"{len(unlabelled)} of {len(with_gpu)} GPU nodes lack the label {naming.GPU_PRODUCT_LABEL}",
            "install GPU feature discovery; without the label, a revision is verified once per node",
        )
    products = sorted({node["metadata"]["labels"][naming.GPU_PRODUCT_LABEL] for node in with_gpu})
    return Finding("ok", f"{len(with_gpu)} nodes have GPUs: {', '.join(products)}")


def _paths(schema: Json, prefix: str = "") -> set[str]:
    found = set()
    for name, below in (schema.get("properties") or {}).items():
        found |= {prefix + name} | _paths(below, f"{prefix}{name}.")
    items = schema.get("items")
    return found | (_paths(items, prefix) if isinstance(items, dict) else set())
