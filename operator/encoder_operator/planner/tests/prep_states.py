"""States of a preparation, for tests of what is planned in them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from encoder_operator import naming
from encoder_operator.planner import artifact
from encoder_operator.planner.actions import Apply
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.state import desired, observed
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Job, PersistentVolumeClaim, Pod, Revision, Termination
from encoder_operator.tests import harness
from encoder_operator.tests.harness import SETTINGS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def wanted() -> EncoderModel:
    live = harness.encoder_model()
    live["metadata"]["uid"] = "u"
    return desired.parse_model(live, SETTINGS)


MODEL = wanted()
KEY = revision.artifact_key(MODEL)
CLAIM = PersistentVolumeClaim(
    name="minilm-artifacts", uid="c", bound=True, shared=True, message="", live=harness.existing_pvc()
)


def pod(**changes: Any) -> Pod:
    found = observed.parse_pod({"metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}})
    return replace(found, **changes)


def ended(code: int, said: str | dict[str, Any] = "", reason: str = "Error") -> Termination:
    message = said if isinstance(said, str) else json.dumps(said)
    return Termination(exit_code=code, reason=reason, message=message, finished_at=NOW)


def job(*pods: Pod, **changes: Any) -> Job:
    return replace(
        Job(
            name=naming.prep_job("minilm", KEY),
            uid="j",
            revision="",
            annotations={naming.INPUTS: prep_job.inputs_hash(MODEL, KEY), naming.RETRY: ""},
            created=NOW,
            deleting=False,
            complete=False,
            failed="",
            message="",
            finished_at=None,
            pods=pods,
        ),
        **changes,
    )


def kinds(found: artifact.ArtifactPlan) -> list[str]:
    return [action.manifest["kind"] for action in found.actions if isinstance(action, Apply)]


def with_artifact(number: int = 1, model: EncoderModel = MODEL, **changes: Any) -> Revision:
    """Return a revision of the model whose artifact is on the PVC; its digest is named by the number."""
    pinned = {
        "key": revision.artifact_key(model),
        "digest": f"d{number}",
        "reference": "f",
        "revision": "1",
        "bytes": 5_000_000,
    }
    fields: dict[str, Any] = {
        "hash": f"r{number}",
        "inputs_hash": "",
        "number": number,
        "pvc_uid": CLAIM.uid,
        "template": {},
        "pinned": {"artifact": pinned, "claim": "minilm-artifacts"},
        "created": NOW,
        "unresolved_source": revision.unresolved_source(model),
    }
    return Revision(**{**fields, **changes})
