"""One look at one EncoderModel: read, decide, write what differs, tell. Keeps nothing between two looks."""

from __future__ import annotations

import structlog

from encoder_operator import decide, metrics, model, names, observation, ownership, status, verification
from encoder_operator.canonical import Json, digest
from encoder_operator.cluster import Cluster
from encoder_operator.errors import NotAccepted
from encoder_operator.facts import Facts, spelled
from encoder_operator.plan import Action, Apply, Delete, Notice, Plan, SetGate
from encoder_operator.reasons import Reason
from encoder_operator.settings import Settings

_LOG = structlog.get_logger()


class Reconciler:
    """Brings EncoderModels and their children to what their specs ask for."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Look once.

        Returns:
            After how many seconds to look again even if nothing happens; None if only events matter.
        """
        live = await self._cluster.get(names.KIND, namespace, name)
        if live is None or "deletionTimestamp" in live["metadata"]:
            # the garbage collector removes the children by their owner references
            return None
        facts = await observation.observe(self._cluster, namespace, live)
        plan = self._plan(live, facts)
        for action in plan.actions:
            await self._act(namespace, action)
        for notice in plan.notices:
            await self._cluster.post_event(_event(live, notice, facts))
        if plan.status != live.get("status"):
            await self._cluster.replace_status(namespace, name, live["metadata"]["uid"], plan.status)
        return plan.wake_after

    def _plan(self, live: Json, facts: Facts) -> Plan:
        try:
            if facts.conflicts:
                raise NotAccepted(
                    Reason.NAME_CONFLICT,
                    f"{', '.join(facts.conflicts)} exists and is not this model's: rename one of them",
                )
            return decide.decide(model.parse(live, self._settings, facts.inputs), facts, self._settings)
        except NotAccepted as error:
            shown = status.refused(live, error, facts)
            wake = 30.0 if error.reason is Reason.NAME_CONFLICT else None
            return Plan(
                actions=verification.kept_open(facts),
                notices=status.notices(live.get("status", {}), shown),
                status=shown,
                wake_after=wake,
            )

    async def _act(self, namespace: str, action: Action) -> None:
        match action:
            case Apply():
                await self._apply(action)
            case Delete():
                _LOG.info("delete", kind=action.kind, child=action.name)
                await self._cluster.delete(action.kind, namespace, action.name)
            case SetGate():
                gate = action.gate
                _LOG.info("gate", pod=action.pod, open=gate.open, reason=gate.reason)
                condition = {
                    "type": names.GATE,
                    "status": "True" if gate.open else "False",
                    "reason": str(gate.reason),
                    "message": gate.message,
                }
                await self._cluster.set_gate(namespace, action.pod, action.uid, condition)

    async def _apply(self, action: Apply) -> None:
        if ownership.matches(action.manifest, action.live):
            return
        kind, name = action.manifest["kind"], action.manifest["metadata"]["name"]
        _LOG.info("apply", kind=kind, child=name, exists=action.live is not None)
        await self._cluster.apply(action.manifest)
        if action.live is not None:
            metrics.UPDATES.labels(kind).inc()


def _event(live: Json, notice: Notice, facts: Facts) -> Json:
    meta = live["metadata"]
    identity = digest(
        {"uid": meta["uid"], "generation": meta.get("generation"), "say": [notice.reason, notice.message]}
    )
    now = spelled(facts.now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        # the same fact has the same name: telling it again is refused by the API server, without a write
        "metadata": {"name": f"{meta['name']}.{identity[:16]}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason.value,
        "message": notice.message[:1024],
        "source": {"component": names.MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
