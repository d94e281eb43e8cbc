"""Read EncoderModels and their children from the API server, in batches.

A single read is one request for the EncoderModel and one list per kind of child. Reads that are requested while others
are in flight form a batch, whose children are listed by all names at once. A thousand models thus take about a hundred
requests instead of ten thousand. Nothing is cached between two reads.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError, RequestRejected
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import parse_version

# one object of each of these kinds has the same name as the model; without the operator's label it belongs to someone
# else
_NAMED_LIKE_THE_MODEL = ("Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "HTTPRoute")
_KINDS = ("Job", "Pod", "ControllerRevision", *_NAMED_LIKE_THE_MODEL)
# the only kind that a cluster may lack
_HTTP_ROUTE = "HTTPRoute"
_HTTP_ROUTE_RESOURCE = "gateway.networking.k8s.io", "v1", "httproutes"
_DISCOVERY_SECONDS = 300.0
# a batch stays in memory until its models are planned; larger batches use more memory and save few requests
_MAX_BATCH_SIZE = 16
# a second batch uses the time that the first one waits for the API server
_MAX_CONCURRENT_BATCHES = 2
# for more namespaces than this, one list over the whole cluster is cheaper
_MAX_NAMESPACED_LISTS = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An EncoderModel and its children as the API server returned them."""

    live: Json
    children: Mapping[str, list[Json]]
    namesakes: Mapping[str, Json]
    pvc: Json | None
    gateway_api: bool
    versions: Mapping[str, str]


_Batch: TypeAlias = dict[NamespacedName, "asyncio.Future[Snapshot | None]"]


class SnapshotReader:
    """Reads snapshots in batches.

    Args:
        client: Reads from the API server.
        namespaced: Whether the operator may not list the whole cluster.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, client: Client, *, namespaced: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._namespaced = namespaced
        self._clock = clock
        self._waiting: dict[NamespacedName, asyncio.Future[Snapshot | None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        # when the Gateway API was looked for last, and whether it was there
        self._gateway: tuple[float, bool] | None = None

    async def read(self, key: NamespacedName) -> Snapshot | None:
        """Return the EncoderModel with its children, or None if it does not exist or is being deleted."""
        loop = asyncio.get_running_loop()
        future = self._waiting.get(key)
        if future is None:
            # reads that are requested in this iteration of the event loop join the batch
            loop.call_soon(self._start)
            future = self._waiting[key] = loop.create_future()
        return await asyncio.shield(future)

    def _start(self) -> None:
        if not self._waiting or len(self._running) >= _MAX_CONCURRENT_BATCHES:
            return
        keys = list(self._waiting)[:_MAX_BATCH_SIZE]
        batch = {key: self._waiting.pop(key) for key in keys}
        task = asyncio.get_running_loop().create_task(self._run(batch), name=f"read {len(batch)} models")
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _run(self, batch: _Batch) -> None:
        try:
            found = await self._views(list(batch))
        except RequestRejected as error:
            # what is rejected in one namespace must not fail the models of the others
            parts = _split_by_namespace(batch)
            if len(parts) > 1:
                await asyncio.gather(*(self._run(part) for part in parts))
            else:
                _fail(batch, error)
            return
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        for key, future in batch.items():
            future.set_result(found.get(key))

    async def _views(self, keys: list[NamespacedName]) -> dict[NamespacedName, Snapshot]:
        # Jobs before pods, so that a finished Job is never seen without the pod that holds its result
        models, jobs = await asyncio.gather(self._models(keys), self._list("Job", keys))
        later = [kind for kind in _KINDS if kind not in ("Job", _HTTP_ROUTE)]
        lists, routes = await asyncio.gather(
            asyncio.gather(*(self._list(kind, keys) for kind in later)), self._routes(keys)
        )
        by_kind = {"Job": jobs, **dict(zip(later, lists, strict=True))} | routes
        versions = {kind: version for kind, (_, version) in by_kind.items()}
        # ReplicaSets after pods: each pod must find the ReplicaSet that created it
        pvcs, replica_sets = await asyncio.gather(self._claims(models), self._replica_sets(keys))
        found = {}
        for key, live in models.items():
            children = {kind: by_kind[kind][0].get(key, []) for kind in by_kind}
            children["ReplicaSet"] = replica_sets.get(key, [])
            found[key] = Snapshot(
                live=live,
                children=children,
                namesakes=await self._namesakes(key, live, children),
                pvc=pvcs.get((key.namespace, pvc_name(live))),
                gateway_api=_HTTP_ROUTE in by_kind,
                versions=versions | {naming.KIND: live["metadata"]["resourceVersion"]},
            )
        return found

    async def _models(self, keys: Iterable[NamespacedName]) -> dict[NamespacedName, Json]:
        found = await asyncio.gather(*(self._client.get(naming.KIND, *key) for key in keys))
        # the garbage collector deletes the children of a deleted EncoderModel through their owner references
        return {
            key: live
            for key, live in zip(keys, found, strict=True)
            if live is not None and "deletionTimestamp" not in live["metadata"]
        }

    async def _routes(self, keys: list[NamespacedName]) -> dict[str, tuple[dict[NamespacedName, list[Json]], str]]:
        """Return the HTTPRoutes by kind, or an empty dictionary if the cluster does not serve HTTPRoutes."""
        if not await self._has_gateway():
            return {}
        try:
            return {_HTTP_ROUTE: await self._list(_HTTP_ROUTE, keys)}
        except ApiServerError as error:
            if error.status != 404:
                raise
        self._gateway = (self._clock(), False)
        return {}

    def _by_namespace(self, keys: list[NamespacedName]) -> dict[str, list[str]]:
        """Return the names to list for, by the namespace to list in."""
        found: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            found[key.namespace].append(key.name)
        if len(found) > _MAX_NAMESPACED_LISTS and not self._namespaced:
            return {"*": sorted({key.name for key in keys})}
        return found

    async def _replica_sets(self, keys: list[NamespacedName]) -> dict[NamespacedName, list[Json]]:
        """Return who owns the ReplicaSets of each model: the link between a serving pod and the Deployment."""
        lists = await asyncio.gather(
            *(
                self._client.list_owners("ReplicaSet", namespace, naming.MODEL, models)
                for namespace, models in self._by_namespace(keys).items()
            )
        )
        found: dict[NamespacedName, list[Json]] = defaultdict(list)
        for item in (item for listed in lists for item in listed):
            meta = item["metadata"]
            found[NamespacedName(meta["namespace"], meta["labels"][naming.MODEL])].append(item)
        return found

    async def _list(self, kind: str, keys: list[NamespacedName]) -> tuple[dict[NamespacedName, list[Json]], str]:
        lists = await asyncio.gather(
            *(
                self._client.list_with_version(kind, namespace, {naming.MODEL: models})
                for namespace, models in self._by_namespace(keys).items()
            )
        )
        found: dict[NamespacedName, list[Json]] = defaultdict(list)
        for listed in lists:
            for item in listed.items:
                meta = item["metadata"]
                key = NamespacedName(meta["namespace"], meta["labels"][naming.MODEL])
                # items of a list lack their kind
                item["kind"] = kind
                found[key].append(item)
        # everything older than the oldest of the lists is in all of them
        return found, min((listed.version for listed in lists), key=parse_version)

    async def _claims(self, models: Mapping[NamespacedName, Json]) -> dict[tuple[str, str], Json | None]:
        wanted = list({(key.namespace, pvc_name(live)) for key, live in models.items()})
        found = await asyncio.gather(*(self._client.get("PersistentVolumeClaim", *pvc) for pvc in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _namesakes(self, key: NamespacedName, live: Json, children: Mapping[str, list[Json]]) -> dict[str, Json]:
        """Return the child of each kind that has the model's name, whether or not it belongs to the model."""
        found = {}
        for kind in _NAMED_LIKE_THE_MODEL:
            ours = next((c for c in children.get(kind, []) if c["metadata"]["name"] == key.name), None)
            if ours is None and kind in children and _is_requested(kind, live.get("spec", {})):
                ours = await self._client.get(kind, *key)
            if ours is not None:
                found[kind] = ours
        return found

    async def _has_gateway(self) -> bool:
        if self._gateway is None or self._clock() - self._gateway[0] > _DISCOVERY_SECONDS:
            self._gateway = (self._clock(), await self._client.has_resource(*_HTTP_ROUTE_RESOURCE))
        return self._gateway[1]


def pvc_name(live: Json) -> str:
    """Return the name of the PersistentVolumeClaim that holds a model's artifacts."""
    storage = live.get("spec", {}).get("storage") or {}
    return str(storage.get("claimName") or naming.artifacts_pvc(live["metadata"]["name"]))


def _is_requested(kind: str, spec: Json) -> bool:
    network = spec.get("network") or {}
    if kind == "NetworkPolicy":
        return network.get("networkPolicy") is not None
    if kind == "HTTPRoute":
        return network.get("httpRoute") is not None
    if kind == "PodDisruptionBudget":
        return bool((spec.get("serving") or {}).get("replicas", 1) > 1)
    return True


def _split_by_namespace(batch: _Batch) -> list[_Batch]:
    found: dict[str, _Batch] = defaultdict(dict)
    for key, future in batch.items():
        found[key.namespace][key] = future
    return list(found.values())


def _fail(batch: _Batch, error: BaseException) -> None:
    for future in batch.values():
        future.set_exception(_retryable(error))
        # the caller may have been cancelled
        future.exception()


def _retryable(error: BaseException) -> BaseException:
    # a cancelled batch must not look like a cancelled reconcile
    return error if isinstance(error, Exception) else RuntimeError("the read was cancelled")
