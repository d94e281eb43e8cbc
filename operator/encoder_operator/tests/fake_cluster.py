"""An API server in memory, behind lightkube's transport: the real client, real requests, real field ownership.

It keeps what the operator relies on and nothing more: server-side apply with managed fields, status subresources, label
selectors, owner references. ``writes`` lists every change that a client made.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal
from urllib.parse import parse_qs

import httpx2
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, User

# in the API server's own words
NOT_AS_TESTED = "the server rejected our request due to an error in our request"
Json = dict[str, Any]

# the keys of lists that are maps to the API server; all other lists are values
_LIST_KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "readinessGates": None,
}
_SERVICE_PORT_KEYS = ("port", "protocol")


class Killed(BaseException):
    """Stands for SIGKILL."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the n-th write: it fails or the operator is killed, before it took effect or after."""

    write: int
    how: Literal["fails", "killed"]
    when: Literal["before", "after"]

    def happens(self) -> httpx2.Response:
        if self.how == "killed":
            raise Killed
        if self.when == "after":
            raise httpx2.ReadTimeout("the answer is lost")
        return httpx2.Response(500, json={"message": "asked to fail", "code": 500})


class FakeCluster(httpx2.AsyncBaseTransport):
    """Objects by (plural, namespace, name), and the requests that change them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.writes: list[str] = []
        self.created: list[tuple[str, str]] = []
        self.fail_next: list[tuple[int, dict[str, str]]] = []
        self.fault: Fault | None = None
        self.gateway_api = False
        # "PATCH jobs": what the operator has no permission for
        self.forbidden: set[str] = set()
        # the same for what an admission webhook is called that does not answer
        self.webhook_down: set[str] = set()
        # what the API server says of the next manifests of a kind: "deployments"
        self.invalid: dict[str, tuple[int, str]] = {}
        # how far its clock is ahead of the operator's
        self.ahead = timedelta()
        self._attempts = 0
        self.version = 0

    @staticmethod
    def config() -> SingleConfig:
        found = KubeConfig.from_one(cluster=Cluster(server="http://cluster.test", insecure=True), user=User()).get()
        assert found is not None
        return found

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.fail_next:
            code, headers = self.fail_next.pop(0)
            return self._answer(code, {"message": "asked to fail", "code": code}, headers)
        plural, namespace, name, subresource = _path(request.url.path)
        body = json.loads(request.content) if request.content else {}
        if f"{request.method} {plural}" in self.forbidden:
            return self._answer(403, {"message": f"{plural} is forbidden", "code": 403})
        if f"{request.method} {plural}" in self.webhook_down:
            said = f'Internal error occurred: failed calling webhook "{plural}.example.org": connection refused'
            return self._answer(500, {"message": said, "code": 500})
        if request.method == "GET":
            return self._read(plural, namespace, name, parse_qs(request.url.query.decode()))
        if plural in self.invalid:
            code, message = self.invalid[plural]
            return self._answer(code, {"message": message, "code": code})
        if "dryRun" in parse_qs(request.url.query.decode()):
            return self._answer(200, body)
        self._attempts += 1
        fault = self.fault if self.fault and self.fault.write == self._attempts else None
        if fault and fault.when == "before":
            return fault.happens()
        known = len(self.objects)
        code, answer = self._change(request, plural, namespace, name, subresource, body)
        if len(self.objects) > known:
            self.created.append((plural, answer["metadata"]["name"]))
        if code < 300:
            self.writes.append(f"{request.method} {plural}{'/' + subresource if subresource else ''} {name}")
        if fault:
            return fault.happens()
        return self._answer(code, answer)

    def of(self, plural: str, **labels: str) -> list[Json]:
        """Return objects by labels (``component="prep"`` for encoders.dev/component)."""
        wanted = {f"encoders.dev/{key}": value for key, value in labels.items()}
        return [
            found
            for (kind, _, _), found in sorted(self.objects.items())
            if kind == plural and wanted.items() <= found["metadata"].get("labels", {}).items()
        ]

    def put(self, plural: str, live: Json) -> Json:
        """Store an object as somebody else than the operator."""
        meta = live["metadata"]
        key = (plural, meta.get("namespace", ""), meta["name"])
        old = self.objects.get(key)
        meta.setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        changed = old is None or old.get("spec") != live.get("spec")
        meta["generation"] = meta.get("generation", 0) + (1 if changed else 0)
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self.objects[key] = live
        return live

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object, and at once everything that it owns."""
        gone = self.objects.pop((plural, namespace, name))
        self.version += 1
        uid = gone["metadata"]["uid"]
        for kind, where, called in list(self.objects):
            live = self.objects.get((kind, where, called))
            if live and any(owner["uid"] == uid for owner in live["metadata"].get("ownerReferences", [])):
                self.remove(kind, where, called)

    def _read(self, plural: str, namespace: str, name: str, query: dict[str, list[str]]) -> httpx2.Response:
        if name == "group" and not plural:
            return self._answer(200 if self.gateway_api else 404, {"resources": [{"name": "httproutes"}]})
        if name:
            live = self.objects.get((plural, namespace, name))
            return self._answer(200, live) if live else self._missing(plural, name)
        if plural == "httproutes" and not self.gateway_api:
            return httpx2.Response(404, text="404 page not found\n")
        selector = query.get("labelSelector", [""])[0]
        wanted = _selected(selector)
        uid = next(
            (p.split("=")[1] for p in query.get("fieldSelector", [""])[0].split(",") if "involvedObject" in p), ""
        )
        items = [
            live
            for (kind, where, _), live in sorted(self.objects.items())
            if kind == plural
            and (where == namespace or not namespace)
            and all(live["metadata"].get("labels", {}).get(label) in values for label, values in wanted.items())
            and (not uid or live["involvedObject"]["uid"] == uid)
        ]
        return self._answer(200, {"items": items, "metadata": {"resourceVersion": str(self.version)}})

    def _change(
        self, request: httpx2.Request, plural: str, namespace: str, name: str, subresource: str, body: Any
    ) -> tuple[int, Json]:
        key = (plural, namespace, name)
        live = self.objects.get(key)
        kind = request.headers.get("content-type", "")
        if request.method == "POST":
            name = body["metadata"]["name"]
            if (plural, namespace, name) in self.objects:
                return 409, {"message": f"{name} exists", "code": 409}
            return 201, self.put(plural, body)
        if live is None and "apply" not in kind:
            return 404, {"message": f"{plural} {name} not found", "code": 404}
        if live is not None and _stale(live, body):
            return 409, {"message": f"{plural} {name} has been modified", "code": 409}
        if request.method == "DELETE":
            self.remove(plural, namespace, name)
            return 200, {}
        if "apply" in kind:
            for field in ("uid", "resourceVersion"):
                body["metadata"].pop(field, None)
            return 200, self.put(plural, _applied(copy.deepcopy(live), body))
        assert live is not None
        assert subresource == "status"
        changed = copy.deepcopy(live)
        if "json-patch" in kind:
            for test in body[:-1]:
                if live["metadata"][test["path"].rpartition("/")[2]] != test["value"]:
                    return 422, {"message": NOT_AS_TESTED, "code": 422, "reason": "Invalid"}
            changed["status"] = body[-1]["value"]
        else:
            for condition in body["status"]["conditions"]:
                conditions = changed.setdefault("status", {}).setdefault("conditions", [])
                conditions[:] = [entry for entry in conditions if entry["type"] != condition["type"]] + [condition]
        return 200, self.put(plural, changed)

    def _missing(self, plural: str, name: str) -> httpx2.Response:
        return self._answer(404, {"message": f"{plural} {name!r} not found", "code": 404})

    def now(self) -> datetime:
        """Return the time by the API server's clock."""
        return datetime.now(UTC) + self.ahead

    def _answer(self, code: int, body: Json | None, headers: dict[str, str] | None = None) -> httpx2.Response:
        own = {"Content-Type": "application/json", "Date": format_datetime(self.now(), usegmt=True)}
        return httpx2.Response(code, json=body or {}, headers={**own, **(headers or {})})


def _selected(selector: str) -> dict[str, set[str]]:
    """Parse `a=b,c in (d,e)`."""
    found = {}
    for label, one, several in re.findall(r"([^,=() ]+)(?:=([^,]*)| in \(([^)]*)\))", selector):
        found[label] = set(several.split(",")) if several else {one}
    return found


def _stale(live: Json, body: Any) -> bool:
    """Say whether a write was meant for another object or another version of it."""
    if not isinstance(body, dict):
        return False
    meant = {**body.get("metadata", {}), **body.get("preconditions", {})}
    return any(field in meant and meant[field] != live["metadata"][field] for field in ("uid", "resourceVersion"))


def _path(path: str) -> tuple[str, str, str, str]:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if not parts:
        # what a group has; only the Gateway API is asked for
        return "", "", "group", ""
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return parts[0], namespace, parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else ""


def _applied(live: Json | None, manifest: Json) -> Json:
    manager = "encoder-operator"
    wanted = copy.deepcopy(manifest)
    fields = _fields({k: v for k, v in wanted.items() if k not in ("apiVersion", "kind")})
    for own in ("f:name", "f:namespace"):
        fields["f:metadata"].pop(own, None)
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    if live is None:
        wanted["metadata"]["managedFields"] = [entry]
        return wanted
    managed = live["metadata"].pop("managedFields", [])
    for old in managed:
        if old["manager"] == manager:
            _remove(live, old["fieldsV1"])
    merged = _merge(live, wanted)
    merged["metadata"]["managedFields"] = [m for m in managed if m["manager"] != manager] + [entry]
    return dict(merged)


def _keys(name: str, value: list[Any]) -> tuple[str, ...] | None:
    if name == "ports" and value and "port" in value[0]:
        return _SERVICE_PORT_KEYS
    return _LIST_KEYS.get(name)


def _fields(value: Json) -> Json:
    found: Json = {}
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            found[f"f:{name}"] = _fields(entry)
        elif isinstance(entry, list) and entry and (keys := _keys(name, entry)):
            found[f"f:{name}"] = {
                "k:" + json.dumps({key: item[key] for key in keys}): {".": {}, **_fields(item)} for item in entry
            }
        else:
            found[f"f:{name}"] = {}
    return found


def _remove(live: Any, fields: Json) -> None:
    for key, below in fields.items():
        name = key[2:]
        if not key.startswith("f:") or name not in live:
            continue
        inner = {k: v for k, v in below.items() if k != "."}
        if not inner:
            del live[name]
        elif isinstance(live[name], list):
            for item_key, item_fields in inner.items():
                wanted = json.loads(item_key[2:])
                for item in list(live[name]):
                    if wanted.items() <= item.items():
                        _remove(item, item_fields)
                        if not item:
                            live[name].remove(item)
            if not live[name]:
                del live[name]
        else:
            _remove(live[name], inner)
            if not live[name]:
                del live[name]


def _merge(live: Any, wanted: Any, name: str = "") -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{key: _merge(live.get(key), value, key) for key, value in wanted.items()}}
    if isinstance(live, list) and isinstance(wanted, list) and (keys := _keys(name, wanted)):
        found = list(live)
        for item in wanted:
            same = next((i for i, old in enumerate(found) if all(old.get(k) == item[k] for k in keys)), None)
            if same is None:
                found.append(item)
            else:
                found[same] = _merge(found[same], item)
        return found
    return wanted
