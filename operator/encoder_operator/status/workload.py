"""What runs for an EncoderModel, for its status: the engine of a revision, and the Jobs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from encoder_operator import naming
from encoder_operator.planner.actions import Action, Apply, Delete
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import Job, ObservedState, Revision, Verdict

# versions come from the engine itself
_VERSION_LIMIT = 64


def engine(found: Revision | None, observed: ObservedState, verdict: Verdict | None) -> Json | None:
    """Return image, dtype and versions of the engine of a revision.

    Args:
        found: The revision, if there is one.
        observed: The observed state, whose pods have the ID of the image.
        verdict: The verdict on the revision. The engine reports its versions during the parity check.
    """
    if found is None:
        return None
    pods = sorted((pod for pod in observed.pods if pod.revision == found.hash), key=lambda pod: pod.created)
    image_id = next((pod.image_id for pod in pods if pod.image_id), verdict.image if verdict else "")
    reported = verdict.data.get("versions") if verdict else None
    versions = reported if isinstance(reported, dict) else {}
    values = {
        "image": found.pinned["image"],
        "imageID": image_id,
        "accelerator": found.pinned["accelerator"],
        "dtype": found.pinned["dtype"],
        "pluginVersion": str(versions.get("plugin", ""))[:_VERSION_LIMIT],
        "vllmVersion": str(versions.get("vllm", ""))[:_VERSION_LIMIT],
    }
    return {name: value for name, value in values.items() if value}


def newest_job(jobs: Iterable[Job], actions: Iterable[Action]) -> str | None:
    """Return the name of the newest Job, or None if there is no Job.

    Args:
        jobs: The Jobs of one component that exist.
        actions: The planned actions, which may create a Job or delete some.
    """
    actions = tuple(actions)
    created = [
        str(action.manifest["metadata"]["name"])
        for action in actions
        if isinstance(action, Apply) and action.manifest["kind"] == "Job"
    ]
    if created:
        return created[-1]
    gone = {action.name for action in actions if isinstance(action, Delete) and action.kind == "Job"}
    kept = [job for job in jobs if job.name not in gone and not job.deleting]
    newest = max(kept, key=_age, default=None)
    return newest.name if newest else None


def _age(job: Job) -> tuple[datetime, int, str]:
    # the API server's clock has a resolution of one second
    number = job.annotations.get(naming.ATTEMPT, "")
    return job.created, int(number) if number.isdigit() else 0, job.name
