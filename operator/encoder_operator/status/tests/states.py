"""States made by hand, for tests of the status: a model that serves, and what differs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from encoder_operator.api.v1alpha1.status import Status
from encoder_operator.planner.artifact import ArtifactPlan
from encoder_operator.planner.rollout import RolloutPlan
from encoder_operator.planner.verification import VerificationPlan
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.observed import (
    Deployment,
    GateCondition,
    ObservedState,
    Platform,
    Pod,
    Revision,
    Verdict,
    parse_pod,
)
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason
from encoder_operator.status.status import (
    StatusInputs,
    build_status,
)
from encoder_operator.tests.harness import parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = Platform("NVIDIA-L4", "sha256:1")
ARTIFACT = Artifact(key="k", digest="sha256:d", reference="sha256:f", revision="1" * 40, bytes=7)
MODEL = parsed_model()
CRASH: dict[str, Any] = {"waiting_reason": "CrashLoopBackOff", "waiting_message": "back-off", "ready": False}


def revision(number: int) -> Revision:
    pinned = {"image": "engine:1", "accelerator": "nvidia", "dtype": "bfloat16"}
    return Revision(
        hash=f"r{number}", inputs_hash="", number=number, pvc_uid="", template={}, pinned=pinned, created=NOW
    )


FIRST, SECOND = revision(1), revision(2)


def pod(of: Revision = FIRST, **changes: Any) -> Pod:
    body = {"metadata": {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": of.hash}}}
    gate = GateCondition(open=True, reason="ParityPassed", message="", platform=HERE)
    found = parse_pod({**body, "status": {"phase": "Running"}})
    return replace(
        found,
        **{"product": HERE.product, "image_id": HERE.image, "ready": True, "created": NOW, "gate": gate, **changes},
    )


def verdict(of: Revision = FIRST, *, passed: bool = True, **changes: Any) -> Verdict:
    result = "Passed" if passed else "Failed"
    fields: dict[str, Any] = {
        "name": f"{of.hash}-{result}",
        "revision": of.hash,
        "product": HERE.product,
        "image": HERE.image,
        "thresholds": MODEL.thresholds,
        "retry": "",
        "passed": passed,
        "data": {"result": result, "metrics": [], "cases": 3, "ranAt": "2026-01-01T00:00:00Z"},
        "created": NOW,
    }
    return Verdict(**{**fields, **changes})


SERVING = ObservedState(
    now=NOW,
    pods=(pod(),),
    verdicts=(verdict(),),
    deployment=Deployment(revision="r1", replicas=1, replica_failure="", live={}),
)
ROLLED_OUT = RolloutPlan(
    deployed=FIRST, replicas=1, active=FIRST, target_may_serve=True, rejection=None, actions=(), foreign_fields=()
)
READY = ArtifactPlan(reason=Reason.PREPARED, message="prepared", key="k", artifact=ARTIFACT)


def status(
    *,
    spec: dict[str, Any] | None = None,
    observed: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    verification: dict[str, Any] | None = None,
    **inputs: Any,
) -> Json:
    """Return the status of a model that serves, with changes."""
    seen = replace(SERVING, **(observed or {}))
    given = StatusInputs(
        model=parsed_model(spec),
        observed=seen,
        artifact_plan=READY,
        target=FIRST,
        verification=VerificationPlan(observed=seen, **(verification or {})),
        rollout=replace(ROLLED_OUT, **(rollout or {})),
        available_update=None,
    )
    found = build_status(replace(given, **inputs))
    # the API server rejects a status that is not in the schema
    Status.model_validate(found)
    return found


def reported(found: Json, *names: str) -> dict[str, tuple[str, str]]:
    return {
        entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"] if entry["type"] in names
    }


def messages(found: Json) -> dict[str, str]:
    return {entry["type"]: entry["message"] for entry in found["conditions"]}


MOVED = Problem(Reason.PARITY_RUNNING, "compared on another platform")
UNPREPARED = ArtifactPlan(reason=Reason.PREPARING, message="Pod p is running", key="k")
NOTHING: dict[str, Any] = {"deployed": None, "active": None, "replicas": 0, "target_may_serve": False}
EMPTY: dict[str, Any] = {"pods": (), "verdicts": (), "deployment": None}
ROUTE = {"parentRefs": [{"name": "gateway"}], "hostnames": ["m.example"]}
