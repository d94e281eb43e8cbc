"""A real Gateway on the node: Traefik as the controller and the proxy, deployed as its documentation has it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from encoder_node import extra_programs, module_sources
from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.install import Platform
from encoder_platform.kube import POD, Body, Kube, is_true

NAMESPACE = "gateways"
NAME = "edge"
URL = f"http://{NAME}.{NAMESPACE}.svc"
ROUTE = ("gateway.networking.k8s.io/v1", "HTTPRoute")

_GROUP = "gateway.networking.k8s.io"
_GATEWAY = (f"{_GROUP}/v1", "Gateway")
_PROGRAM = "/tmp/traefik"
_PORT = 8000
_ROUTES = ("gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants", "backendtlspolicies")
_LOOK = ["get", "list", "watch"]


def objects(image: str) -> list[Body]:
    """The controller's pod and Service, what it may do, and a Gateway that takes routes from every namespace. Pure."""
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "services", "secrets", "configmaps"], "verbs": _LOOK},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _LOOK},
        {"apiGroups": [_GROUP], "resources": list(_ROUTES), "verbs": _LOOK},
        {"apiGroups": [_GROUP], "resources": [f"{name}/status" for name in _ROUTES], "verbs": ["update"]},
    ]
    everyone = {"namespaces": {"from": "All"}}
    listener = {"name": "web", "protocol": "HTTP", "port": _PORT, "allowedRoutes": everyone}
    meta = {"name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *manifests.account(NAME, NAMESPACE, rules),
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "GatewayClass",
            "metadata": {"name": NAME},
            "spec": {"controllerName": "traefik.io/gateway-controller"},
        },
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Gateway",
            "metadata": meta,
            "spec": {"gatewayClassName": NAME, "listeners": [listener]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": {"app": NAME}, "ports": [{"port": 80, "targetPort": _PORT}]},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "labels": {"app": NAME}}, "spec": _pod(image)},
    ]


def _pod(image: str) -> Body:
    options = f"--providers.kubernetesgateway --entrypoints.web.address=:{_PORT} --log.level=INFO"
    container = manifests.program_container(NAME, image, _PROGRAM, options)
    return {"serviceAccountName": NAME, "terminationGracePeriodSeconds": 2, "containers": [container]}


@contextmanager
def running(platform: Platform) -> Iterator[None]:
    """Install the Gateway API, and run a Gateway, while the block runs."""
    kube = platform.kube
    resources = str(module_sources.folder(module_sources.GATEWAY_API) / "config/crd/standard")
    program = extra_programs.program("traefik")
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(platform.images["e2e"])})
    kube.run("apply", "--server-side", "-f", resources)
    try:
        kube.run("wait", "--for=condition=Established", "-f", resources)
        kube.run("apply", "--server-side", "-f", "-", stdin=made)
        wait_for("the gateway's pod", lambda: is_true(kube.get(POD, NAME, NAMESPACE), "Ready"), seconds=60)
        kube.upload(program, NAMESPACE, NAME, _PROGRAM)
        wait_for("the Gateway", lambda: is_true(kube.get(_GATEWAY, NAME, NAMESPACE), "Accepted"), seconds=60)
        yield
    finally:
        kube.run("delete", "--ignore-not-found", "-f", "-", stdin=made, seconds=120)
        kube.run("delete", "--ignore-not-found", "-f", resources, seconds=120)


def accepted(kube: Kube, name: str, namespace: str) -> bool:
    """Whether the Gateway has taken a route, and found what it leads to."""
    route = kube.get(ROUTE, name, namespace) or {}
    parents = route.get("status", {}).get("parents") or []
    return bool(parents) and all(
        {c["type"] for c in parent["conditions"] if c["status"] == "True"} >= {"Accepted", "ResolvedRefs"}
        for parent in parents
    )
