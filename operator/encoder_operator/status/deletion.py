"""The status of an EncoderModel that is being deleted and that a finalizer, or a foreground deletion, keeps for a while."""

from __future__ import annotations

from datetime import datetime

from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import format_time
from encoder_operator.status.reasons import Reason

_MESSAGE = "The EncoderModel is being deleted"


def deleting_status(old: Json, pods: list[Json], generation: int, now: datetime) -> Json:
    """Return the status of such a model: it will not be ready again, and it is available while pods are ready.

    Args:
        old: The status before.
        pods: The model's serving pods.
        generation: The EncoderModel's.
        now: Current time.
    """
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    ready = sum(map(_is_ready, alive))
    changes = {"Ready": ("False", _MESSAGE), "Progressing": ("True", _MESSAGE)}
    if not ready:
        changes["Available"] = ("False", f"No pod is ready. {_MESSAGE}")

    def changed(entry: Json) -> Json:
        if entry["type"] not in changes:
            return entry
        status, message = changes[entry["type"]]
        since = entry.get("lastTransitionTime") if entry["status"] == status else None
        return entry | {
            "status": status,
            "reason": Reason.WAITING_FOR_DELETION.value,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since or format_time(now),
        }

    return old | {
        "observedGeneration": generation,
        "phase": old.get("phase", "Pending") if ready else "Pending",
        "ready": f"{ready}/{old.get('desiredReplicas', 0)}",
        "replicas": len(alive),
        "readyReplicas": ready,
        "conditions": [changed(entry) for entry in old.get("conditions", [])],
    }


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
