"""Many objects at once: a plain asynchronous client of the API server, and a model with its children copied a thousand times."""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from encoder_operator.client import apply_diff

Body = dict[str, Any]
MODELS = "apis/encoders.dev/v1alpha1", "encodermodels"
CHILDREN = (
    ("apps/v1", "ControllerRevision", "controllerrevisions"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("batch/v1", "Job", "jobs"),
    ("v1", "Service", "services"),
    ("v1", "Pod", "pods"),
)
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_AT_ONCE = 24


class Bulk:
    """The API server, as its administrator."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session, self._server = session, server
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def send(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str
    ) -> Body:
        """Send one request; an error is an exception, except that of creating what is there already."""
        status, found = await self.answer(method, path, body, kind, **query)
        if status >= 400 and status != 409:
            raise RuntimeError(f"{method} {path}: {status} {found.get('message')}")
        return found

    async def answer(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str
    ) -> tuple[int, Body]:
        """Send one request and return the HTTP status and the body of the response, whatever they are."""
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": kind}
        async with (
            self._slots,
            self._session.request(
                method, f"{self._server}/{path}", data=content, headers=headers, params=query
            ) as answer,
        ):
            text = await answer.text()
            found: Body = json.loads(text) if text.startswith("{") else {"message": text}
            return answer.status, found

    async def watch(self, path: str, **query: str) -> AsyncIterator[Body]:
        """Yield events from now on, until cancelled."""
        now = (await self.send("GET", path, limit="1"))["metadata"]["resourceVersion"]
        endless = aiohttp.ClientTimeout(total=None)
        while True:
            options = {"watch": "true", "resourceVersion": now, **query}
            async with self._session.get(f"{self._server}/{path}", params=options, timeout=endless) as answer:
                answer.raise_for_status()
                # the API server ends a watch whose client reads more slowly than events occur
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"watch {path}: {event['object'].get('message')}")
                    now = event["object"]["metadata"]["resourceVersion"]
                    yield event

    async def every(self, work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Do all of it, some at a time."""
        return await asyncio.gather(*work)


@asynccontextmanager
async def connected(kubeconfig: Path, *, user: str = "", groups: Iterable[str] = ()) -> AsyncIterator[Bulk]:
    """Connect to the cluster of a kubeconfig with a client certificate.

    Args:
        kubeconfig: the file.
        user: impersonate this user; the user of the kubeconfig if empty.
        groups: groups of the impersonated user.
    """
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, owner = config["clusters"][0]["cluster"], config["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=ca)
    with tempfile.NamedTemporaryFile() as pair:
        for field in ("client-certificate-data", "client-key-data"):
            pair.write(base64.b64decode(owner[field]))
        pair.flush()
        context.load_cert_chain(pair.name)
    # events are lines, and a line is a whole object
    connector = aiohttp.TCPConnector(ssl=context, limit=_AT_ONCE + 8)
    headers = [("Impersonate-User", user)] * bool(user) + [("Impersonate-Group", group) for group in groups]
    async with aiohttp.ClientSession(
        connector=connector, read_bufsize=2**22, max_line_size=2**20, headers=headers
    ) as session:
        yield Bulk(session, cluster["server"])


def path_of(version: str, plural: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of its collection."""
    root = f"apis/{version}" if "/" in version else f"api/{version}"
    return "/".join(part for part in (root, "namespaces", namespace, plural, name) if part)


class Pattern:
    """A served EncoderModel and its children, to be copied."""

    def __init__(self, live: Body, children: list[tuple[str, str, Body]]) -> None:
        self._live, self._children = live, children
        self._name = live["metadata"]["name"]

    @classmethod
    async def read(cls, bulk: Bulk, namespace: str, name: str) -> "Pattern":
        """Read the pattern from a cluster on which it is Ready."""
        live = await bulk.send("GET", f"{MODELS[0]}/namespaces/{namespace}/{MODELS[1]}/{name}")
        children = []
        for version, kind, plural in CHILDREN:
            found = await bulk.send(
                "GET", path_of(version, plural, namespace), labelSelector=f"encoders.dev/model={name}"
            )
            for item in found["items"]:
                # what has ended is of no interest, except for counting Jobs
                if kind != "Pod" or item["metadata"]["labels"].get("encoders.dev/component") == "serving":
                    children.append((plural, version, {**item, "apiVersion": version, "kind": kind}))
        return cls(live, children)

    async def copy(self, bulk: Bulk, namespace: str, name: str) -> None:
        """Make one more, as the operator would have left it: with its field manager, and its status."""
        root = f"{MODELS[0]}/namespaces/{namespace}/{MODELS[1]}"
        rename = self._renaming(namespace, name)
        body = rename({field: self._live[field] for field in ("apiVersion", "kind", "spec")})
        made = await bulk.send("POST", root, {**body, "metadata": {"name": name, "namespace": namespace}})
        # an owner comes before what it owns
        uids = {self._live["metadata"]["uid"]: made["metadata"]["uid"]}
        await bulk.send("PATCH", f"{root}/{name}/status", rename({"status": self._live["status"]}), _MERGE)
        for plural, version, live in self._children:
            child = rename(_manifest(live))
            owners = child["metadata"].get("ownerReferences", [])
            for owner in owners:
                owner["uid"] = uids[owner["uid"]]
            path = path_of(version, plural, namespace, child["metadata"]["name"])
            if plural in ("jobs", "pods", "replicasets"):
                created = await bulk.send("POST", path.rpartition("/")[0], child, fieldManager="encoder-operator")
            else:
                created = await bulk.send("PATCH", path, child, _APPLY, fieldManager="encoder-operator", force="true")
            uids[live["metadata"]["uid"]] = created["metadata"]["uid"]
            if "status" in live:
                await bulk.send("PATCH", f"{path}/status", rename({"status": live["status"]}), _MERGE)

    def _renaming(self, namespace: str, name: str) -> Callable[[Body], Body]:
        old_space, old_name = self._live["metadata"]["namespace"], self._name

        def rename(body: Body) -> Body:
            text = json.dumps(body).replace(f'"{old_space}"', f'"{namespace}"').replace(old_name, name)
            found: Body = json.loads(text)
            return found

        return rename


def _manifest(live: Body) -> Body:
    """Return what was applied, so that the copy's fields are owned as the pattern's are."""
    meta = live["metadata"]
    identity = {"name": meta["name"], "namespace": meta["namespace"]}
    fields = apply_diff.owned_fields(live)
    if fields is not None:
        found: Body = apply_diff.extract_owned(live, fields)
        return {
            **found,
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": found["metadata"] | identity,
        }
    kept = {field: meta[field] for field in ("labels", "annotations", "ownerReferences") if field in meta}
    spec = {field: value for field, value in live["spec"].items() if field != "volumes"}
    if live["kind"] != "Pod":
        generated = ("controller-uid", "job-name")
        spec = {field: value for field, value in live["spec"].items() if live["kind"] != "Job" or field != "selector"}
        template = spec["template"]["metadata"]
        if live["kind"] == "Job":
            template["labels"] = {k: v for k, v in template["labels"].items() if not k.endswith(generated)}
        return {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": identity | kept, "spec": spec}
    for container in spec["containers"]:
        container["volumeMounts"] = [
            m for m in container.get("volumeMounts", []) if "serviceaccount" not in m["mountPath"]
        ]
    spec["volumes"] = [v for v in live["spec"].get("volumes", []) if not v["name"].startswith("kube-api-access")]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": identity | kept, "spec": spec}
