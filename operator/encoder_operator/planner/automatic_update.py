"""Decide whether to roll out newer defaults of the operator without the user's annotation.

An automatic update is a value of the annotation `encoders.dev/update` that the operator chooses. It is recorded in the
revision like a value that the user has set, so the update continues after the window has closed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import get_args

from encoder_operator.manager.settings import Settings, UpdateWindow, Weekday
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Revision
from encoder_operator.status.reasons import Reason

_DAYS = get_args(Weekday)
# an update that cannot be verified keeps its slot, so that the same does not happen to all models
_IN_PROGRESS = frozenset({Reason.ROLLOUT_IN_PROGRESS, Reason.INCONCLUSIVE, Reason.PREPARING, Reason.QUEUED})


def with_update(
    model: EncoderModel, observed: ObservedState, known: Revision | None, settings: Settings
) -> EncoderModel:
    """Return the model with the update to make, if newer defaults are available and may be rolled out now.

    Args:
        model: The desired state.
        observed: The observed state.
        known: The revision for the current spec, if there is one.
        settings: Current images and defaults.
    """
    # without a pod, nothing can be verified
    without_pods = model.spec.suspend or not model.spec.serving.replicas
    if known is None or not is_automatic(model) or without_pods or not observed.automatic_update:
        return model
    shared = model.has_shared_volume(observed.pvc)
    if revision.available_update(known, model, shared=shared, settings=settings) is None:
        return model
    current = revision.build(model, revision.pinned_artifact(known), shared=shared, settings=settings)
    token = f"{revision.annotated_update(model.update)}{revision.AUTOMATIC}{model.plugin.prep_version}-{current.hash}"
    return replace(model, update=token)


def is_automatic(model: EncoderModel) -> bool:
    """Return whether the model is updated automatically."""
    return model.spec.rollout.update_policy == "Automatic"


def is_in_progress(status: Json) -> bool:
    """Return whether a model that serves is being moved to another revision, by its status."""
    entry = next((found for found in status.get("conditions", []) if found["type"] == "UpToDate"), None)
    return bool(
        status.get("activeRevision") and entry and entry["status"] != "True" and entry["reason"] in _IN_PROGRESS
    )


def is_open(window: UpdateWindow, now: datetime) -> bool:
    """Return whether an update may start now. A window that ends before it starts ends on the next day."""
    if not window.start:
        return _DAYS[now.weekday()] in window.days
    time = f"{now:%H:%M}"
    if window.start < window.end:
        return window.start <= time < window.end and _DAYS[now.weekday()] in window.days
    begun = now if time >= window.start else now - timedelta(days=1)
    return (time >= window.start or time < window.end) and _DAYS[begun.weekday()] in window.days
