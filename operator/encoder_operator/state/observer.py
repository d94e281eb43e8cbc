"""Parse snapshots into observed state, and read what only some EncoderModels need."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json
from encoder_operator.state import observed, ownership
from encoder_operator.state.observed import Job, ObservedState, Pod, Revision, Verdict
from encoder_operator.state.snapshot import Snapshot, pvc_name

# the kubelet and the attach controller report only in Events that a volume of a pod cannot be used
_MOUNT_EVENTS = frozenset({"FailedMount", "FailedAttachVolume"})
# and that a pod cannot be created on its node: a runtime class without its runtime, a network plugin, a device by claim
_CREATION_EVENTS = frozenset({"FailedCreatePodSandBox", "FailedPrepareDynamicResources"})
# what is about to be ready is reported as failed, too
_START_GRACE_SECONDS = 10.0
_NOT_RESPONDING = "is not responding"
# node labels rarely change
_PRODUCT_SECONDS = 60.0
_PROGRESS_SECONDS = 10.0
_PROGRESS_LINES = 5
_MAX_CACHE_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class _ProgressSample:
    """The last progress line in the log of a prep pod, and when it was read."""

    read: float
    line: Json | None


class Observer:
    """Turns snapshots into observed state."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._namespaced = settings.namespaced
        self._products: dict[str, tuple[float, str]] = {}
        self._progress_samples: dict[str, _ProgressSample] = {}
        self._node_problems: dict[str, tuple[float, str]] = {}

    async def observe(self, snapshot: Snapshot) -> ObservedState:
        """Return the observed state of an EncoderModel."""
        meta = snapshot.live["metadata"]
        name, namespace, uid = meta["name"], meta["namespace"], meta["uid"]
        named = snapshot.namesakes
        own = ownership.children(snapshot.children, named.get("Deployment"), uid)
        jobs, pods, records = own.jobs, own.pods, own.records
        deployment, service, pvc = named.get("Deployment"), named.get("Service"), snapshot.pvc
        own_claim = pvc_name(snapshot.live) == naming.artifacts_pvc(name)
        conflicts = [found for found in (deployment, service) if found and not ownership.belongs_to(found, name, uid)]
        labelled = (*snapshot.children["Job"], *snapshot.children["ControllerRevision"], *named.values())
        leftovers = [child for child in labelled if ownership.of_namesake(child, name, uid)]
        if pvc and own_claim and not ownership.belongs_to(pvc, name, uid):
            conflicts.append(pvc)
        elif pvc and own_claim and "deletionTimestamp" in pvc["metadata"]:
            leftovers.append(pvc)
        revisions = sorted(
            (observed.parse_revision(record) for record in _with_component(records, "revision")),
            key=lambda found: (found.number, found.hash),
        )
        verdicts = tuple(observed.parse_verdict(record) for record in _with_component(records, "verdict"))
        parsed = [await self._pod(namespace, pod) for pod in pods]
        inputs, found_inputs = await self._inputs(namespace, snapshot.live)
        serving, comparing = (
            {pod["metadata"]["uid"] for pod in _with_component(pods, component)} for component in ("serving", "parity")
        )
        for late in (serving, comparing):
            parsed = await self._with_problem_of_oldest(namespace, parsed, late)
        return ObservedState(
            now=self._client.now,
            pvc=observed.parse_pvc(pvc) if pvc and "deletionTimestamp" not in pvc["metadata"] else None,
            deployment=observed.parse_deployment(deployment) if deployment else None,
            service=service,
            network_policy=named.get("NetworkPolicy"),
            http_route=named.get("HTTPRoute"),
            disruption_budget=named.get("PodDisruptionBudget"),
            gateway_api=snapshot.gateway_api,
            prep_jobs=tuple([await self._job(job, parsed) for job in _with_component(jobs, "prep")]),
            parity_jobs=tuple([await self._job(job, parsed) for job in _with_component(jobs, "parity")]),
            revisions=tuple(revisions),
            verdicts=verdicts,
            pods=await self._with_products((pod for pod in parsed if pod.uid in serving), revisions, verdicts),
            stale_children=tuple(_display_name(child) for child in leftovers),
            name_conflicts=tuple(_display_name(found) for found in conflicts),
            live_revisions={
                record["metadata"]["labels"][naming.REVISION]: record for record in _with_component(records, "revision")
            },
            inputs=inputs,
            inputs_config_map=found_inputs,
            config_map_keys=await self._config_map_keys(namespace, snapshot.live, _with_component(pods, "prep")),
        )

    async def _pod(self, namespace: str, live: Json) -> Pod:
        pod = observed.parse_pod(live)
        if live["metadata"].get("labels", {}).get(naming.COMPONENT) != "prep":
            return pod
        if pod.node and pod.alive:
            pod = replace(pod, node_problem=await self._node_problem(pod))
        if pod.starts_on_node:
            return await self._with_start_problem(namespace, pod)
        if pod.phase == "Running" and pod.terminated is None:
            return replace(pod, progress=await self._progress(namespace, pod))
        return pod

    async def _job(self, live: Json, pods: Iterable[Pod]) -> Job:
        job = observed.parse_job(live, pods)
        waited = (self._client.now - job.created).total_seconds()
        if job.pods or job.finished or job.deleting or waited < observed.FIRST_POD_SECONDS:
            return job
        # the Job controller reports only in Events that the API server rejects a pod
        event = await self._last_event(live["metadata"]["namespace"], job.uid, reason="FailedCreate")
        return replace(job, rejection=str(event.get("message", "")))

    async def _node_problem(self, pod: Pod) -> str:
        """Return what is wrong with the node of a prep pod. The pod's own status shows it only after Kubernetes has evicted the pod."""
        if self._namespaced:
            # Nodes cannot be read here; if a node stops responding, the node controller marks its pods as not ready but
            # leaves their containers ready
            return _NOT_RESPONDING if pod.containers_ready and not pod.ready else ""
        before, now = self._node_problems.get(pod.node), time.monotonic()
        if before is not None and now - before[0] < _PROGRESS_SECONDS:
            return before[1]
        try:
            problem = _node_problem(await self._client.get("Node", None, pod.node))
        except RequestRejected:
            # optional information
            problem = ""
        while len(self._node_problems) >= _MAX_CACHE_ENTRIES:
            del self._node_problems[next(iter(self._node_problems))]
        self._node_problems[pod.node] = (now, problem)
        return problem

    async def _with_problem_of_oldest(self, namespace: str, pods: list[Pod], uids: set[str]) -> list[Pod]:
        """Add what keeps one of these pods from starting. One is enough for the status, so only the Events of the oldest one are read."""
        now = self._client.now
        late = [
            pod
            for pod in pods
            if pod.uid in uids
            and pod.starts_on_node
            and not pod.deleting
            and (now - pod.created).total_seconds() >= _START_GRACE_SECONDS
        ]
        oldest = min(late, key=lambda pod: (pod.created, pod.name), default=None)
        if oldest is None:
            return pods
        found = await self._with_start_problem(namespace, oldest)
        return [found if pod is oldest else pod for pod in pods]

    async def _with_start_problem(self, namespace: str, pod: Pod) -> Pod:
        """Add what keeps a pod from starting on its node, unless something else has happened to it since."""
        event = await self._last_event(namespace, pod.uid)
        message, reason = str(event.get("message", "")), event.get("reason")
        return replace(
            pod,
            mount_problem=message if reason in _MOUNT_EVENTS else "",
            creation_problem=message if reason in _CREATION_EVENTS else "",
        )

    async def _last_event(self, namespace: str, uid: str, **fields: str) -> Json:
        """Return the newest Event about an object whose fields have some values, or an empty one."""
        events = await self._client.list("Event", namespace, {}, {"involvedObject.uid": uid, **fields})
        return max(events, key=_event_age, default={})

    async def _progress(self, namespace: str, pod: Pod) -> Json | None:
        """Return the last progress line in the pod's log, which is read at most once in ten seconds."""
        before, now = self._progress_samples.get(pod.uid), time.monotonic()
        if before is not None and now - before.read < _PROGRESS_SECONDS:
            return before.line
        line = _last_progress_line(await self._client.read_log(namespace, pod.name, _PROGRESS_LINES))
        if line is not None:
            line = {
                **line,
                "at": observed.format_time(self._client.now),
                "bytesPerSecond": _bytes_per_second(before, line, now),
            }
        elif before is not None:
            line = before.line
        while len(self._progress_samples) >= _MAX_CACHE_ENTRIES:
            del self._progress_samples[next(iter(self._progress_samples))]
        self._progress_samples[pod.uid] = _ProgressSample(now, line)
        return line

    async def _inputs(self, namespace: str, live: Json) -> tuple[str | None, bool]:
        """Return the hash of the user's parity inputs (empty if the spec names none, None if they do not exist), and whether their ConfigMap exists."""
        wanted = ((live.get("spec", {}).get("parity") or {}).get("inputs") or {}).get("configMapRef")
        if wanted is None:
            return "", False
        found = await self._client.get("ConfigMap", namespace, wanted["name"])
        content = (found or {}).get("data", {}).get(wanted.get("key", "inputs.json"))
        return None if content is None else hashlib.sha256(content.encode()).hexdigest(), found is not None

    async def _config_map_keys(
        self, namespace: str, live: Json, prep_pods: Iterable[Json]
    ) -> dict[str, frozenset[str] | None]:
        """Return the keys of the ConfigMaps of label sets, None for one that does not exist; nothing while no prep Job needs them."""
        references = [entry.get("configMapRef") for entry in live.get("spec", {}).get("labelSets") or []]
        names = dict.fromkeys(found["name"] for found in references if found)
        mounted = any(pod.get("status", {}).get("phase") == "Running" for pod in prep_pods)
        if not names or mounted or _is_artifact_ready(live):
            return {}
        # one after the other: each may have 1 MiB
        return {name: _keys(await self._client.get("ConfigMap", namespace, name)) for name in names}

    async def _with_products(
        self, pods: Iterable[Pod], revisions: list[Revision], verdicts: tuple[Verdict, ...]
    ) -> tuple[Pod, ...]:
        """Add the accelerator product that each pod runs on."""
        made_for = {found.hash: found for found in revisions}
        # a pod never moves to another node, so the product of its parity check stays valid
        compared = {
            verdict.data["binding"].get("uid"): verdict.product
            for verdict in sorted(verdicts, key=lambda found: found.created)
        }
        return tuple(
            await asyncio.gather(
                *(self._with_product(pod, made_for.get(pod.revision), compared.get(pod.uid)) for pod in pods)
            )
        )

    async def _with_product(self, pod: Pod, made_for: Revision | None, compared: str | None) -> Pod:
        if made_for is not None and made_for.pinned["accelerator"] == "cpu":
            return replace(pod, product="cpu")
        if pod.gate is not None and pod.gate.platform is not None:
            # the label of a node disappears whenever gpu-feature-discovery restarts, but a pod keeps its node and devices
            return replace(pod, product=pod.gate.platform.product)
        if not pod.node:
            return pod
        if self._namespaced:
            # Nodes cannot be read here: each pod is verified separately unless its template pins the product
            return replace(pod, product=compared or _pinned_product(made_for) or f"{naming.SINGLE_POD}{pod.uid}")
        return replace(pod, product=await self._product(pod.node))

    async def _product(self, node: str) -> str:
        read, known = self._products.get(node, (0.0, ""))
        if known and time.monotonic() - read < _PRODUCT_SECONDS:
            return known
        live = await self._client.get("Node", None, node)
        label = live["metadata"].get("labels", {}).get(naming.GPU_PRODUCT_LABEL) if live else None
        # without the label the product of a node is unknown, so each node is verified separately
        product = label or f"node:{node}"
        while len(self._products) >= _MAX_CACHE_ENTRIES:
            del self._products[next(iter(self._products))]
        self._products[node] = (time.monotonic(), product)
        return product


def _with_component(found: Iterable[Json], component: str) -> list[Json]:
    return [entry for entry in found if ownership.component(entry) == component]


def _is_artifact_ready(live: Json) -> bool:
    """Return whether the last status has an artifact for the current spec; if it is gone, the next status does not."""
    conditions = live.get("status", {}).get("conditions") or []
    generation = live["metadata"].get("generation")
    return any(
        entry["type"] == "ArtifactReady" and entry["status"] == "True" and entry.get("observedGeneration") == generation
        for entry in conditions
    )


def _keys(config_map: Json | None) -> frozenset[str] | None:
    if config_map is None:
        return None
    return frozenset([*(config_map.get("data") or ()), *(config_map.get("binaryData") or ())])


def _pinned_product(made_for: Revision | None) -> str:
    selector = made_for.template["spec"].get("nodeSelector") if made_for else None
    return str((selector or {}).get(naming.GPU_PRODUCT_LABEL, ""))


def _event_age(event: Json) -> tuple[str, int]:
    # some reporters set only eventTime; times have seconds only, and versions grow
    version = str(event.get("metadata", {}).get("resourceVersion", ""))
    return event.get("lastTimestamp") or event.get("eventTime") or "", observed.parse_version(version)


def _display_name(live: Json) -> str:
    return f"{live.get('kind', 'object')} {live['metadata']['name']}"


def _node_problem(live: Json | None) -> str:
    if live is None:
        return "is gone"
    ready = next((entry for entry in live.get("status", {}).get("conditions", []) if entry["type"] == "Ready"), None)
    if ready is None or ready["status"] == "True":
        return ""
    detail = ready.get("message", "")
    return f"{_NOT_RESPONDING} ({detail})" if detail else _NOT_RESPONDING


def _last_progress_line(log: str) -> Json | None:
    for text in reversed(log.splitlines()):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and _is_progress(line):
            return line
    return None


def _is_progress(line: Json) -> bool:
    """Return whether a line of a log has the form of progress; a library or the checkpoint's own code may print other JSON."""
    counts = (line.get(name, 0) for name in ("bytes", "total"))
    return isinstance(line.get("phase"), str) and all(type(count) is int for count in counts)


def _bytes_per_second(before: _ProgressSample | None, line: Json, now: float) -> int:
    if before is None or before.line is None or before.line.get("phase") != line.get("phase"):
        return 0
    done = int(line.get("bytes") or 0) - int(before.line.get("bytes") or 0)
    return max(0, round(done / (now - before.read)))
