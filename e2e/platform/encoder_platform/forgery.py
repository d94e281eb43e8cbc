"""What the administrator of a namespace can try in order to have an engine taken for verified that is not.

Everything is enumerated: the kinds that the API server lets the tenant create, the labels and annotations that the operator's code
defines, the places of an object that hold metadata, and the owners that a child can name. What is new is tried without a change here.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from encoder_operator import naming
from encoder_platform import manifests
from encoder_platform.bulk import Body, path_of

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
Path = tuple[str, ...]

# every label, annotation and condition that the operator's code gives a meaning to
KEYS = tuple(
    sorted(
        value
        for value in vars(naming).values()
        if isinstance(value, str)
        and value.startswith(f"{naming.GROUP}/")
        and value != f"{naming.GROUP}/{naming.VERSION}"
    )
)

_LABELS = {"app": "tenant"}
_POD = {
    "securityContext": manifests.RESTRICTED,
    "containers": [{"name": "c", "image": "c:1", "securityContext": manifests.LOCKED_CONTAINER}],
}
_SELECTOR = {"matchLabels": _LABELS}


def _template(**spec: Any) -> Body:
    return {"metadata": {"labels": dict(_LABELS)}, "spec": {**_POD, **spec}}


# what runs pods, or is a record of the operator: group and version, plural, kind, content, and where it has metadata
WORKLOADS: dict[str, tuple[str, str, Body, tuple[Path, ...]]] = {
    "Pod": ("v1", "pods", {"spec": _POD}, ((),)),
    "PodTemplate": ("v1", "podtemplates", {"template": _template()}, ((), ("template",))),
    "ReplicationController": (
        "v1",
        "replicationcontrollers",
        {"spec": {"replicas": 0, "selector": _LABELS, "template": _template()}},
        ((), ("spec", "template")),
    ),
    "Deployment": (
        "apps/v1",
        "deployments",
        {"spec": {"replicas": 0, "selector": _SELECTOR, "template": _template()}},
        ((), ("spec", "template")),
    ),
    "ReplicaSet": (
        "apps/v1",
        "replicasets",
        {"spec": {"replicas": 0, "selector": _SELECTOR, "template": _template()}},
        ((), ("spec", "template")),
    ),
    "StatefulSet": (
        "apps/v1",
        "statefulsets",
        {"spec": {"replicas": 0, "serviceName": "x", "selector": _SELECTOR, "template": _template()}},
        ((), ("spec", "template")),
    ),
    "DaemonSet": (
        "apps/v1",
        "daemonsets",
        {"spec": {"selector": _SELECTOR, "template": _template(nodeSelector={"no": "node"})}},
        ((), ("spec", "template")),
    ),
    "ControllerRevision": ("apps/v1", "controllerrevisions", {"revision": 1, "data": {"result": "Passed"}}, ((),)),
    "Job": (
        "batch/v1",
        "jobs",
        {"spec": {"suspend": True, "template": _template(restartPolicy="Never")}},
        ((), ("spec", "template")),
    ),
    "CronJob": (
        "batch/v1",
        "cronjobs",
        {
            "spec": {
                "schedule": "0 0 1 1 *",
                "suspend": True,
                "jobTemplate": {"spec": {"template": _template(restartPolicy="Never")}},
            }
        },
        ((), ("spec", "jobTemplate"), ("spec", "jobTemplate", "spec", "template")),
    ),
}
# kinds of the admin role that run nothing and that the operator finds by name only, or not at all; a verdict rests on none of them
PASSIVE = frozenset(
    {
        "bindings",
        "configmaps",
        "encodermodels.encoders.dev",
        "endpoints",
        "endpointslices.discovery.k8s.io",
        "events",
        "events.events.k8s.io",
        "horizontalpodautoscalers.autoscaling",
        "ingresses.networking.k8s.io",
        "leases.coordination.k8s.io",
        "limitranges",
        "localsubjectaccessreviews.authorization.k8s.io",
        "networkpolicies.networking.k8s.io",
        "persistentvolumeclaims",
        "poddisruptionbudgets.policy",
        "resourceclaims.resource.k8s.io",
        "resourceclaimtemplates.resource.k8s.io",
        "resourcequotas",
        "rolebindings.rbac.authorization.k8s.io",
        "roles.rbac.authorization.k8s.io",
        "secrets",
        "serviceaccounts",
        "services",
    }
)


@dataclass(frozen=True)
class Attempt:
    """One request of a tenant.

    Attributes:
        attack: the group of attempts that it belongs to, as `docs/security.md` names it.
        what: what it does, for the list of what was tried.
        method: the HTTP method.
        path: the path on the API server.
        body: the body of the request.
        content: its content type.
        dry_run: whether the API server is only to validate it (server-side dry run).
    """

    attack: str
    what: str
    method: str
    path: str
    body: Any = None
    content: str = "application/json"
    dry_run: bool = True


def manifest(kind: str, namespace: str, name: str = "tenant") -> Body:
    """Return an object of a kind in `WORKLOADS` that has nothing of the operator's in it."""
    version, _, content, _ = WORKLOADS[kind]
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **content}
    return copy.deepcopy(body)


def marks() -> Iterator[tuple[str, Body]]:
    """Yield each label and each annotation as a piece of metadata, with its name."""
    for key in KEYS:
        for field in ("labels", "annotations"):
            yield f"{field[:-1]} {key}", {field: {key: "x"}}


def creations(namespace: str, owners: Iterable[Body]) -> Iterator[Attempt]:
    """Yield the creation of every kind with every mark in every place, and with every owner."""
    owners = list(owners)
    for kind, (version, plural, _, places) in WORKLOADS.items():
        collection = path_of(version, plural, namespace)
        for what, metadata in marks():
            for place in places:
                body = merged(manifest(kind, namespace, "forged"), _at((*place, "metadata"), metadata))
                where = ".".join((*place, "metadata"))
                yield Attempt("forged children", f"create {kind} with {where} {what}", "POST", collection, body)
        for owner in owners:
            if owner["kind"] == naming.KIND:
                body = merged(manifest(kind, namespace, "forged"), {"metadata": {"ownerReferences": [owner]}})
                what = f"create {kind} with owner {owner['kind']}, controller {owner['controller']}"
                yield Attempt("forged owners", what, "POST", collection, body)


def adoptions(namespace: str, owners: Iterable[Body]) -> Iterator[Attempt]:
    """Yield the change of every kind of object of the tenant's own into something that looks like a child."""
    owners = list(owners)
    for kind, (version, plural, _, places) in WORKLOADS.items():
        path = path_of(version, plural, namespace, "tenant")
        for what, metadata in marks():
            for place in places:
                where = ".".join((*place, "metadata"))
                patch = _at((*place, "metadata"), metadata)
                yield Attempt(
                    "objects turned into children", f"give {kind} {where} {what}", "PATCH", path, patch, MERGE
                )
        for owner in owners:
            if owner["kind"] == naming.KIND:
                what = f"give {kind} the owner {owner['kind']}, controller {owner['controller']}"
                yield Attempt("forged owners", what, "PATCH", path, {"metadata": {"ownerReferences": [owner]}}, MERGE)


def changes(children: Iterable[tuple[str, str, Body]]) -> Iterator[Attempt]:
    """Yield every change to what the operator or Kubernetes created for a model: marks, owners, and what runs.

    Args:
        children: kind, plural and version of each, and the live object.
    """
    for plural, version, live in children:
        meta, kind = live["metadata"], live["kind"]
        path = path_of(version, plural, meta["namespace"], meta["name"])

        def change(
            attack: str, what: str, patch: Any, path: str = path, kind: str = kind, name: str = meta["name"]
        ) -> Attempt:
            return Attempt(attack, f"{what} of {kind} {name}", "PATCH", path, patch, MERGE)

        for field in ("labels", "annotations"):
            for key in KEYS:
                yield change("changed children", f"set {field[:-1]} {key}", {"metadata": {field: {key: "forged"}}})
                if key in meta.get(field, {}):
                    yield change("changed children", f"remove {field[:-1]} {key}", {"metadata": {field: {key: None}}})
        yield change("changed children", "remove the owners", {"metadata": {"ownerReferences": None}})
        for place in ((), ("spec", "template")):
            found = live
            for part in place:
                found = found.get(part, {})
            containers = copy.deepcopy(found.get("spec", {}).get("containers"))
            if containers:
                containers[0]["image"] = "forged:1"
                patch = _at((*place, "spec", "containers"), containers)
                yield change("changed children", "replace the image", patch)
        if "data" in live:
            yield change("changed children", "change the content", {"data": {"result": "Passed"}})
            yield change("changed children", "change the number", {"revision": 99})


def reports(pods: Iterable[Body]) -> Iterator[Attempt]:
    """Yield the writes to the status of pods by which a kubelet reports a verdict, readiness, or the gate."""
    for pod in pods:
        meta = pod["metadata"]
        path = path_of("v1", "pods", meta["namespace"], meta["name"]) + "/status"
        container = (pod["status"].get("containerStatuses") or [{"name": pod["spec"]["containers"][0]["name"]}])[0]
        ended = {"exitCode": 0, "message": '{"result": "Passed"}', "reason": "Completed"}
        forged = {"image": "c", "imageID": "c", "ready": True, "restartCount": 0, **container}
        for what, status in {
            "the termination message": {"containerStatuses": [{**forged, "state": {"terminated": ended}}]},
            "the phase": {"phase": "Failed" if pod["status"].get("phase") == "Succeeded" else "Succeeded"},
            "the address": {"podIP": "10.9.9.9", "podIPs": [{"$patch": "replace"}, {"ip": "10.9.9.9"}]},
            **{
                f"the condition {kind}": {"conditions": [{"type": kind, "status": "True", "reason": "Forged"}]}
                for kind in (naming.GATE, naming.PLATFORM, "Ready", "ContainersReady")
                if not _is_true(pod, kind)
            },
        }.items():
            yield Attempt(
                "forged reports", f"write {what} of pod {meta['name']}", "PATCH", path, {"status": status}, STRATEGIC
            )


def entries(pods: Iterable[Body]) -> Iterator[Attempt]:
    """Yield the ways into running pods whose report is believed."""
    for pod in pods:
        meta = pod["metadata"]
        path = path_of("v1", "pods", meta["namespace"], meta["name"])
        shell = {"name": "shell", "image": "c:1", "command": ["sh"], "securityContext": manifests.LOCKED_CONTAINER}
        for verb in ("exec", "attach"):
            yield Attempt("entered pods", f"{verb} {meta['name']}", "POST", f"{path}/{verb}", dry_run=False)
            yield Attempt("entered pods", f"{verb} (GET) {meta['name']}", "GET", f"{path}/{verb}", dry_run=False)
        patch = {"spec": {"ephemeralContainers": [shell]}}
        what = f"ephemeral container in {meta['name']}"
        yield Attempt("entered pods", what, "PATCH", f"{path}/ephemeralcontainers", patch, STRATEGIC)


def owner(live: Body, *, controller: bool) -> Body:
    """Return an owner reference to an object."""
    meta = live["metadata"]
    found = {"apiVersion": live["apiVersion"], "kind": live["kind"], "name": meta["name"], "uid": meta["uid"]}
    return found | {"controller": controller}


def merged(body: Any, patch: Any) -> Any:
    """Return a body with a JSON merge patch applied; nothing is removed."""
    if not isinstance(body, dict) or not isinstance(patch, dict):
        return patch
    return body | {key: merged(body.get(key), value) for key, value in patch.items()}


def _at(path: Path, value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _is_true(pod: Body, kind: str) -> bool:
    found = pod["status"].get("conditions") or []
    return any(entry["type"] == kind and entry["status"] == "True" for entry in found)
