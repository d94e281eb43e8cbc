"""Reconcile one EncoderModel: read its state, make a plan, apply the plan, update the status.

Every reconcile starts from what the API server returns. Nothing that an earlier reconcile computed influences a
decision.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import structlog

from encoder_operator import naming
from encoder_operator.client import apply_diff
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError, Conflict, RequestRejected, WebhookFailed
from encoder_operator.controller.automatic_updates import AutomaticUpdates
from encoder_operator.controller.prep_slots import PrepSlots, has_result, holds_slot, is_finished
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_operator.metrics.condition_gauge import ConditionGauge
from encoder_operator.metrics.phase_gauge import PhaseGauge
from encoder_operator.naming import NamespacedName
from encoder_operator.planner import gates, planner, verification
from encoder_operator.planner.actions import Action, Apply, Delete, DryRun, Event, Plan, SetGate
from encoder_operator.revisions.hashing import Json, canonical_json, json_digest
from encoder_operator.state import desired, ownership
from encoder_operator.state.observed import GateCondition, ObservedState, format_time
from encoder_operator.state.observer import Observer
from encoder_operator.state.snapshot import Snapshot, SnapshotReader
from encoder_operator.status import condition_values, status
from encoder_operator.status.deletion import deleting_status
from encoder_operator.status.events import events_for, events_on_api_error
from encoder_operator.status.reasons import Reason
from encoder_operator.validation.errors import NotAccepted

_LOG = structlog.get_logger()


class Reconciler:
    """Reconciles EncoderModels.

    Args:
        client: Access to the API server.
        settings: Settings of the operator.
        watch_progress: Records which versions a reconcile has read.
        prep_slots: Limits the number of prep Jobs.
        phase_gauge: Counts EncoderModels by phase.
        automatic_updates: Limits the number of automatic updates.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        watch_progress: WatchProgress | None = None,
        prep_slots: PrepSlots | None = None,
        phase_gauge: PhaseGauge | None = None,
        automatic_updates: AutomaticUpdates | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = SnapshotReader(client, namespaced=settings.namespaced)
        self._observer = Observer(client, settings)
        self._watch_progress = watch_progress or WatchProgress()
        self._prep_slots = prep_slots or PrepSlots(settings.max_preps, settings.namespace_max_preps)
        self._phase_gauge = phase_gauge or PhaseGauge()
        self._automatic_updates = automatic_updates or AutomaticUpdates(settings.updates)
        self._condition_gauge = ConditionGauge(settings.condition_metric_max_models)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Reconcile one EncoderModel.

        Returns:
            Seconds until the next reconcile if no event arrives before; None to wait for an event.
        """
        key = NamespacedName(namespace, name)
        try:
            return await self._reconcile(key)
        except BaseException:
            # a model that cannot be reconciled must not keep its turn for a slot
            self._prep_slots.leave(key)
            raise

    def forget(self, namespace: str) -> None:
        """Forget what is known of the models of a namespace that is not served any more. Nothing is written."""
        for key in self._phase_gauge.models | self._condition_gauge.models:
            if key.namespace == namespace:
                self._remove(key)
        self._watch_progress.forget_namespace(namespace)
        self._prep_slots.forget(namespace)

    def _remove(self, key: NamespacedName) -> None:
        """Remove a model that is gone, or not served any more, from gauges and limits."""
        self._phase_gauge.remove(key)
        self._condition_gauge.remove(key)
        self._automatic_updates.remove(key)

    async def _reconcile(self, key: NamespacedName) -> float | None:
        unread = self._watch_progress.unread_events(key)
        try:
            snapshot = await self._reader.read(key)
        except RequestRejected as error:
            await self._report_read_error(key, error)
            raise
        if snapshot is None:
            self._watch_progress.forget_deleted(key, unread)
            # the garbage collector deletes the children through their owner references; a prep Job holds its slot until
            # then
            self._prep_slots.leave(key)
            if self._prep_slots.has_job(key):
                labels = {naming.MODEL: key.name, naming.COMPONENT: "prep"}
                jobs = await self._client.list("Job", key.namespace, labels)
                self._prep_slots.set_jobs(key, [job["metadata"]["name"] for job in jobs if not is_finished(job)])
            try:
                await self._report_deletion(key)
            finally:
                # even one that a finalizer keeps: resyncs do not know it any more, so its end might go unnoticed
                self._remove(key)
            return None
        self._record_snapshot(key, snapshot)
        try:
            try:
                observed = await self._observer.observe(snapshot)
            except RequestRejected as error:
                # nodes, Events and logs are read beside the snapshot
                await self._report_read_error(key, error)
                raise
            return await self._reconcile_snapshot(key, snapshot, observed)
        except BaseException:
            self._watch_progress.forget(key)
            raise

    async def _report_deletion(self, key: NamespacedName) -> None:
        """Update the status of a model that is being deleted, if a finalizer keeps it. Nothing else is written."""
        live = await self._client.get(naming.KIND, *key)
        if live is None or "deletionTimestamp" not in live["metadata"] or not live.get("status"):
            return
        labels = {naming.MODEL: key.name, naming.COMPONENT: "serving"}
        pods = await self._client.list("Pod", key.namespace, labels)
        shown = deleting_status(live["status"], pods, live["metadata"].get("generation", 0), self._client.now)
        try:
            await self._update_status(key, live, shown)
        except RequestRejected as error:
            # it is gone now
            if error.status != 404:
                raise

    def _record_snapshot(self, key: NamespacedName, snapshot: Snapshot) -> None:
        self._watch_progress.record_read(key, snapshot.versions)
        jobs: dict[bool, list[str]] = {True: [], False: []}
        ended: list[str] = []
        pods = snapshot.children["Pod"]
        for job in _with_component(snapshot.children["Job"], "prep"):
            if is_finished(job):
                continue
            if has_result(job, pods):
                ended.append(job["metadata"]["name"])
            else:
                jobs[holds_slot(job, pods, self._client.now)].append(job["metadata"]["name"])
        self._prep_slots.set_jobs(key, running=jobs[True], pending=jobs[False], ended=ended)

    async def _reconcile_snapshot(
        self, key: NamespacedName, snapshot: Snapshot, observed: ObservedState
    ) -> float | None:
        live = snapshot.live
        # no await between here and `reserve`, so no other reconcile can take the slot that this plan relies on
        observed = replace(
            observed,
            prep_wait_reason=self._prep_slots.wait_reason(key),
            automatic_update=self._automatic_updates.may_start(key, observed.now),
        )
        plan = self._make_plan(live, observed)
        self._automatic_updates.set(key, live.get("spec", {}), plan.status)
        starts = any(_creates_prep_job(action) for action in plan.actions)
        if starts:
            self._prep_slots.reserve(key)
        elif _is_queued(plan.status):
            self._prep_slots.wait(key)
        else:
            self._prep_slots.leave(key)
        self._phase_gauge.set(key, str(plan.status.get("phase", "")), str(live.get("spec", {}).get("plugin", "")))
        created = False
        try:
            for action in plan.actions:
                await self._execute(snapshot, action)
                created = created or _creates_prep_job(action)
                self._record_metrics(live, observed, plan.status, action)
        except (RequestRejected, WebhookFailed) as error:
            refused_preparation = starts and not created
            if refused_preparation:
                # a Job that the API server rejects, for instance because of a quota, does not exist and holds no slot
                starts = False
                self._prep_slots.set_jobs(key, ())
            # show a write that the API server rejects in the status
            old = live.get("status") or {}
            shown = status.status_on_api_error(plan.status, old, error, observed.now, preparation=refused_preparation)
            await self._show_error(key, live, shown)
            raise
        finally:
            if starts:
                # the Job may exist even if the write failed; the next reconcile corrects the count
                self._prep_slots.set_jobs(key, ["started"])
        for event in plan.events:
            await self._client.create_event(_event_manifest(live, event, observed.now))
        await self._update_status(key, live, plan.status)
        return plan.requeue_after

    async def _report_read_error(self, key: NamespacedName, error: RequestRejected) -> None:
        """Report that the model's children cannot be read, and leave the rest of its status unchanged."""
        live = await self._client.get(naming.KIND, *key)
        if live is not None:
            old = live.get("status") or {}
            await self._show_error(key, live, status.status_on_api_error(old, old, error, self._client.now))

    async def _show_error(self, key: NamespacedName, live: Json, shown: Json) -> None:
        """Update the status with a rejected request, and post its Events."""
        plugin = str(live.get("spec", {}).get("plugin", ""))
        self._phase_gauge.set(key, str(shown["phase"]), plugin)
        for event in events_on_api_error(live.get("status") or {}, shown):
            await self._client.create_event(_event_manifest(live, event, self._client.now))
        await self._update_status(key, live, shown)

    async def _update_status(self, key: NamespacedName, live: Json, new_status: Json) -> None:
        self._condition_gauge.set(key, new_status)
        if new_status != live.get("status"):
            version = await self._client.replace_status(key.namespace, key.name, live["metadata"], new_status)
            self._watch_progress.record_write(key, naming.KIND, version)
            for entry in condition_values.transitions(live.get("status") or {}, new_status):
                _LOG.info(
                    "condition",
                    type=entry["type"],
                    status=entry["status"],
                    reason=entry["reason"],
                    message=entry["message"],
                    generation=entry.get("observedGeneration"),
                )

    def _record_metrics(self, live: Json, observed: ObservedState, new_status: Json, action: Action) -> None:
        """Update metrics once per recorded result, when the object that records it is created."""
        if not isinstance(action, Apply) or action.live is not None:
            return
        component = action.manifest["metadata"]["labels"].get(naming.COMPONENT)
        if component == "parity" and any(c["reason"] == Reason.INCONCLUSIVE for c in new_status["conditions"]):
            # an inconclusive comparison leaves no record; count it when the next attempt starts
            metrics.PARITY_RESULTS.labels(live["spec"]["plugin"], "Inconclusive").inc()
        elif component == "verdict":
            metrics.PARITY_RESULTS.labels(live["spec"]["plugin"], action.manifest["data"]["result"]).inc()
        elif component == "revision" and not _has_condition(live, "ArtifactReady"):
            for job in observed.prep_jobs:
                # the Job's condition Complete comes seconds after the report of its pod, which is all that a revision waits for
                ended = [pod.terminated for pod in job.pods if pod.terminated and pod.terminated.exit_code == 0]
                if ended and ended[0].finished_at is not None:
                    metrics.PREP_SECONDS.observe(max(0.0, (ended[0].finished_at - job.created).total_seconds()))
                    metrics.PREP_BYTES.inc(action.manifest["data"]["pinned"]["artifact"]["bytes"])

    def _make_plan(self, live: Json, observed: ObservedState) -> Plan:
        try:
            if observed.name_conflicts:
                raise NotAccepted(
                    Reason.NAME_CONFLICT,
                    f"{', '.join(observed.name_conflicts)} already exists and does not belong to this EncoderModel; rename one of them",
                )
            return planner.plan(desired.parse_model(live, self._settings, observed.inputs), observed, self._settings)
        except NotAccepted as error:
            new_status = status.not_accepted_status(live, error, observed)
            requeue_after = 30.0 if error.reason is Reason.NAME_CONFLICT else None
            return Plan(
                actions=gates.gates_to_open(verification.parity_policy_of_manifest(live, self._settings), observed),
                events=events_for(live.get("status", {}), new_status),
                status=new_status,
                requeue_after=requeue_after,
            )

    async def _execute(self, snapshot: Snapshot, action: Action) -> None:
        namespace = snapshot.live["metadata"]["namespace"]
        match action:
            case Apply():
                await self._apply(action)
            case DryRun():
                await self._dry_run(action.manifest)
            case Delete():
                _LOG.info("delete", kind=action.kind, child=action.name)
                await self._client.delete(
                    action.kind, namespace, action.name, _metadata(snapshot, action.kind, action.name)
                )
            case SetGate():
                gate = action.gate
                _LOG.info("gate", pod=action.pod, open=gate.open, reason=gate.reason)
                live = _live_child(snapshot, "Pod", action.pod)
                conditions = _gate_conditions(gate, live, self._client.now)
                version = live.get("metadata", {}).get("resourceVersion")
                await self._client.set_pod_conditions(namespace, action.pod, action.uid, conditions, version)

    async def _apply(self, action: Apply) -> None:
        if apply_diff.is_up_to_date(action.manifest, action.live):
            return
        kind, name = action.manifest["kind"], action.manifest["metadata"]["name"]
        _LOG.info("apply", kind=kind, child=name, exists=action.live is not None)
        if kind == "Job" and action.live is None:
            # the report of a Job is trusted, so a Job that another client created under this name must not become a child
            await self._create(action.manifest)
        else:
            await self._client.apply(action.manifest, action.live)
        if action.live is not None:
            metrics.UPDATES.labels(kind).inc()

    async def _dry_run(self, manifest: Json) -> None:
        """Raise the API server's error if a manifest is invalid, and no other one: whether it can be written now does not matter."""
        try:
            await self._client.dry_run_apply(manifest)
        except ApiServerError as error:
            # 500: a value of a wrong type
            if isinstance(error, RequestRejected) and error.status in (422, 500):
                raise
            _LOG.info("the dry run was not possible", kind=manifest["kind"], error=str(error))

    async def _create(self, manifest: Json) -> None:
        """Create a child, and report an object of another owner that has its name."""
        kind, meta = manifest["kind"], manifest["metadata"]
        try:
            await self._client.create(manifest)
        except Conflict as error:
            found = await self._client.get(kind, meta["namespace"], meta["name"])
            if found is None or ownership.of_model(found, ownership.controller(manifest).get("uid", "")):
                raise
            raise RequestRejected(
                f"{kind} {meta['name']} exists and was not created for this object: delete it to free its name",
                status=error.status,
            ) from error


def _metadata(snapshot: Snapshot, kind: str, name: str) -> Json:
    return dict(_live_child(snapshot, kind, name).get("metadata", {}))


def _live_child(snapshot: Snapshot, kind: str, name: str) -> Json:
    children = (*snapshot.children.get(kind, []), *(c for k, c in snapshot.namesakes.items() if k == kind))
    return next((found for found in children if found["metadata"]["name"] == name), {})


def _gate_conditions(gate: GateCondition, pod: Json, now: datetime) -> list[Json]:
    """Return the conditions that a gate is stored in, of which the second records the platform that it was opened on."""
    entries = [(naming.GATE, "True" if gate.open else "False", str(gate.reason), gate.message)]
    if gate.platform is not None:
        entries.append((naming.PLATFORM, "True", "Recorded", canonical_json(gate.platform._asdict())))
    found = []
    for kind, value, reason, message in entries:
        before = _condition(pod.get("status") or {}, kind)
        since = before.get("lastTransitionTime") if before.get("status") == value else None
        times = {"lastTransitionTime": since or format_time(now)}
        found.append({"type": kind, "status": value, "reason": reason, "message": message, **times})
    return found


def _with_component(found: list[Json], component: str) -> list[Json]:
    return [entry for entry in found if entry["metadata"]["labels"].get(naming.COMPONENT) == component]


def _creates_prep_job(action: Action) -> bool:
    return (
        isinstance(action, Apply)
        and action.live is None
        and action.manifest["kind"] == "Job"
        and action.manifest["metadata"]["labels"][naming.COMPONENT] == "prep"
    )


def _condition(new_status: Json, name: str) -> Json:
    return next((entry for entry in new_status.get("conditions", []) if entry["type"] == name), {})


def _is_queued(new_status: Json) -> bool:
    return bool(_condition(new_status, "ArtifactReady").get("reason") == Reason.QUEUED.value)


def _has_condition(live: Json, name: str) -> bool:
    return bool(_condition(live.get("status") or {}, name).get("status") == "True")


def _event_manifest(live: Json, event: Event, at: datetime) -> Json:
    meta = live["metadata"]
    identity = json_digest(
        {"uid": meta["uid"], "generation": meta.get("generation"), "say": [event.reason, event.message]}
    )
    now = format_time(at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        # the name identifies the content, so that the API server rejects a duplicate without a write
        "metadata": {"name": f"{meta['name']}.{identity[:16]}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": f"{naming.GROUP}/{naming.VERSION}",
            "kind": naming.KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason.value,
        "message": event.message[:1024],
        "source": {"component": naming.MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
