"""``encoder-operator doctor``: is this cluster fit for the operator, and if not, what has to be done?

It asks with the credentials that it runs with: in the operator's pod those are the operator's, and that is the question.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import crd
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json

_READ = ("get", "list", "watch")
# group, resource, verbs: what the operator does in each namespace that it serves
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
LEASES = ("coordination.k8s.io", "leases", ("get", "create", "update"))
_GPU = "nvidia.com/gpu"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer.

    Attributes:
        level: ``wrong`` makes the operator fail; ``note`` is worth knowing.
        text: what was found.
        remedy: what a person does about it.
    """

    level: Literal["ok", "note", "wrong"]
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return it as it is printed."""
        return f"{self.level:<6}{self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")


async def run_checks(client: Client, settings: Settings) -> AsyncIterator[Finding]:
    """Yield what is found, the API server first: without it nothing else can be asked."""
    try:
        served = await client.has_resource(naming.GROUP, naming.VERSION, naming.PLURAL)
    except ApiServerError as error:
        yield Finding("wrong", f"the API server does not answer: {error}", "check the kubeconfig, or KUBECONFIG")
        return
    yield Finding("ok", "the API server answers")
    if served:
        yield await _check_crd(client)
    else:
        yield Finding(
            "wrong",
            f"the API server does not know {naming.KIND}s",
            "install the chart with crds.install, or apply `encoder-operator crd --print`",
        )
    for namespace in settings.namespaces or [""]:
        async for finding in _check_permissions(client, settings, namespace):
            yield finding
    yield await _check_storage(client)
    yield await _check_accelerators(client)


async def _check_crd(client: Client) -> Finding:
    live = await client.get_schema(naming.GROUP, naming.VERSION, naming.KIND)
    wanted = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    missing = sorted(_paths(wanted["properties"]["spec"]) - _paths(live.get("properties", {}).get("spec", {})))
    if not missing:
        return Finding("ok", "the CustomResourceDefinition knows every field of this version")
    shown = ", ".join(f"spec.{path}" for path in missing[:5])
    return Finding(
        "wrong",
        f"the CustomResourceDefinition is of another version: it lacks {shown}{' …' if len(missing) > 5 else ''}",
        "apply `encoder-operator crd --print` of this version, or upgrade the chart with crds.install",
    )


async def _check_permissions(client: Client, settings: Settings, namespace: str) -> AsyncIterator[Finding]:
    wanted = [(group, resource, verbs, namespace) for group, resource, verbs in PERMISSIONS]
    if await client.has_resource("gateway.networking.k8s.io", "v1", "httproutes"):
        wanted.append((*ROUTES, namespace))
    if not settings.namespaced:
        wanted.append(("", "nodes", ("get",), ""))
    if settings.lease:
        wanted.append((*LEASES, settings.lease_namespace))
    missing = []
    for group, resource, verbs, where in wanted:
        name, _, sub = resource.partition("/")
        for verb in verbs:
            asked = {"group": group, "resource": name, "subresource": sub, "verb": verb, "namespace": where}
            if resource == "leases" and verb != "create":
                asked["name"] = settings.lease_name
            if not await client.can_i(asked):
                missing.append(f"{verb} {resource}{'.' + group if group else ''}")
    place = f"namespace {namespace}" if namespace else "all namespaces"
    if not missing:
        yield Finding("ok", f"every permission that the operator needs in {place} is there")
    for text in missing:
        yield Finding("wrong", f"not allowed in {place}: {text}", "upgrade the chart: its role grants this")


async def _check_storage(client: Client) -> Finding:
    try:
        classes = (await client.list_with_version("StorageClass", None, {})).items
    except ApiServerError as error:
        return Finding("note", f"storage classes can't be seen: {error}", "run this with an administrator's kubeconfig")
    default = [c for c in classes if (c["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"]
    if default:
        return Finding("ok", f"storage class {default[0]['metadata']['name']} is the default")
    return Finding(
        "note",
        "there is no default storage class" if classes else "there are no storage classes",
        "name spec.storage.create.storageClassName, or an existing claim, in each EncoderModel",
    )


async def _check_accelerators(client: Client) -> Finding:
    try:
        nodes = (await client.list_with_version("Node", None, {})).items
    except ApiServerError as error:
        return Finding("note", f"nodes can't be seen: {error}", "run this with an administrator's kubeconfig")
    with_gpu = [node for node in nodes if int((node.get("status") or {}).get("allocatable", {}).get(_GPU, 0))]
    if not with_gpu:
        return Finding(
            "note",
            f"none of {len(nodes)} nodes offers {_GPU}",
            "install NVIDIA's device plugin, or serve with spec.serving.accelerator: cpu",
        )
    unlabelled = [n for n in with_gpu if naming.GPU_PRODUCT_LABEL not in (n["metadata"].get("labels") or {})]
    if unlabelled:
        return Finding(
            "note",
            f"{len(unlabelled)} of {len(with_gpu)} nodes with GPUs lack the label {naming.GPU_PRODUCT_LABEL}",
            "install GPU feature discovery; without the label a revision is verified once on each node",
        )
    products = sorted({node["metadata"]["labels"][naming.GPU_PRODUCT_LABEL] for node in with_gpu})
    return Finding("ok", f"GPUs on {len(with_gpu)} nodes: {', '.join(products)}")


def _paths(schema: Json, prefix: str = "") -> set[str]:
    found = set()
    for name, below in (schema.get("properties") or {}).items():
        found |= {prefix + name} | _paths(below, f"{prefix}{name}.")
    items = schema.get("items")
    return found | (_paths(items, prefix) if isinstance(items, dict) else set())
