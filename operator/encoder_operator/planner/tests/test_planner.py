"""Which ControllerRevision is the target, what is recorded in it, and when a plan is made again, from states made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import planner
from encoder_operator.planner.actions import Action, Apply, Delete, Plan, SetGate
from encoder_operator.resources import prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.desired import EncoderModel, parse_model
from encoder_operator.state.observed import (
    Job,
    ObservedState,
    PersistentVolumeClaim,
    Revision,
    parse_job,
    parse_pod,
    parse_revision,
)
from encoder_operator.tests.harness import PREPARED, SETTINGS, annotate, existing_pvc, parsed_model, with_fields

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIM = PersistentVolumeClaim(
    name="minilm-artifacts", uid="pvc", bound=True, shared=True, message="", live=existing_pvc()
)
BRANCH = {"spec.source.huggingFace.revision": "main", "spec.source.huggingFace.allowMutableRevision": True}


def model(changes: dict[str, Any] | None = None, inputs: str = "", **annotations: str) -> EncoderModel:
    live = with_fields(changes or {})
    annotate(**annotations)(live)
    return parse_model(live, SETTINGS, inputs)


def recorded(wanted: EncoderModel, **changes: Any) -> Revision:
    """Return the revision that a model got, as the API server has it."""
    artifact = Artifact(key=revision.artifact_key(wanted), digest="sha256:a", reference="b", revision="1" * 40, bytes=7)
    made = revision.build(wanted, artifact, shared=True, settings=SETTINGS)
    origin = revision.unresolved_source(wanted)
    return replace(made, **{"number": 1, "pvc_uid": "pvc", "unresolved_source": origin, **changes})


def written(actions: tuple[Action, ...]) -> list[Revision]:
    """Return the revisions that a plan records."""
    manifests = [action.manifest for action in actions if isinstance(action, Apply)]
    kept = [found for found in manifests if found["kind"] == "ControllerRevision" and "template" in found["data"]]
    return [parse_revision(found) for found in kept]


def plan(wanted: EncoderModel, *revisions: Revision, **observed: Any) -> Plan:
    return planner.plan(wanted, ObservedState(now=NOW, pvc=CLAIM, revisions=revisions, **observed), SETTINGS)


def prepared(wanted: EncoderModel) -> Job:
    """Return a prep Job that has just finished."""
    key = revision.artifact_key(wanted)
    ended = {"terminated": {"exitCode": 0, "message": json.dumps(PREPARED), "finishedAt": "2026-01-01T00:00:00Z"}}
    metadata = {"name": "p", "uid": "p", "ownerReferences": [{"kind": "Job", "uid": "j", "controller": True}]}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "prepare", "state": ended}]}
    annotations = {naming.INPUTS: prep_job.inputs_hash(wanted, key), naming.RETRY: ""}
    live = {
        "metadata": {"name": naming.prep_job("minilm", key), "uid": "j", "annotations": annotations},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    return parse_job(live, [parse_pod({"metadata": metadata, "status": status})])


def test_the_first_revision_has_the_number_one_and_pins_what_was_prepared() -> None:
    wanted = model()
    (found,) = written(plan(wanted, prep_jobs=(prepared(wanted),)).actions)
    assert (found.number, found.pvc_uid) == (1, "pvc")
    assert found.pinned["artifact"]["digest"] == PREPARED["digest"]
    # with that recorded, the same state needs nothing more
    assert written(plan(wanted, found, prep_jobs=(prepared(wanted),)).actions) == []


def test_an_edit_that_is_reverted_makes_the_old_revision_the_newest_one() -> None:
    first, second = recorded(model()), recorded(model({"spec.serving.maxModelLen": 64}), number=2)
    assert first.hash != second.hash
    assert [(r.hash, r.number) for r in written(plan(model(), first, second).actions)] == [(first.hash, 3)]
    # once that is recorded, there is nothing more to write
    assert written(plan(model(), replace(first, number=3), second).actions) == []


def test_a_revision_that_is_requested_again_counts_once_in_the_history() -> None:
    models = [model({"spec.serving.maxModelLen": 64 * number}) for number in (1, 2, 3, 4)]
    revisions = [recorded(found, number=number) for number, found in enumerate(models, 1)]
    actions = plan(models[2], *revisions).actions
    assert [(r.hash, r.number) for r in written(actions)] == [(revisions[2].hash, 5)]
    assert [found.name for found in actions if isinstance(found, Delete)] == [f"minilm-{revisions[0].hash}"]


def test_a_suspended_model_gets_no_revision_before_it_is_resumed() -> None:
    suspended = model({"spec.suspend": True})
    assert written(plan(suspended, prep_jobs=(prepared(suspended),)).actions) == []
    # one that was requested before stays the target
    found = recorded(suspended)
    assert plan(suspended, found).status["candidateRevision"] == found.hash


@pytest.mark.parametrize("known", ["1", "1+auto-2-abc", "+auto-2-abc"])
@pytest.mark.parametrize("annotated", [True, False], ids=["annotated", "removed"])
def test_an_update_stays_recorded_until_the_annotation_has_another_value(known: str, annotated: bool) -> None:
    update = known.partition("+")[0] if annotated else ""
    wanted = model(update=update) if update else model()
    found = recorded(wanted, update=known)
    assert written(plan(wanted, found).actions) == []
    (changed,) = written(plan(model(update="9"), found).actions) or [found]
    assert changed.update == "9"


def test_the_retry_of_a_branch_is_recorded_and_that_of_a_commit_is_not() -> None:
    found = recorded(model(BRANCH), retry="1")
    assert found.unresolved_source
    # a removed annotation requests nothing
    assert written(plan(model(BRANCH), found).actions) == []
    assert written(plan(model(BRANCH, retry="1"), found).actions) == []
    pinned = recorded(model())
    assert written(plan(model(retry="2"), pinned).actions) == []


def test_a_gate_is_set_once() -> None:
    wanted = model({"spec.parity.mode": "Disabled"})
    found = recorded(wanted)
    pod = parse_pod(
        {
            "metadata": {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": found.hash}},
            "spec": {"nodeName": "node"},
            "status": {"phase": "Running"},
        }
    )
    gates = [action for action in plan(wanted, found, pods=(pod,)).actions if isinstance(action, SetGate)]
    assert [(gate.pod, gate.gate.open) for gate in gates] == [("pod", True)]


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        (model(), None),
        (model({"spec.parity.inputs": {"configMapRef": {"name": "cases"}}}, inputs="c" * 64), 60.0),
        (model({"spec.network.httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["m.example"]}}), 60.0),
    ],
    ids=["watched", "ConfigMap", "no Gateway API"],
)
def test_what_is_not_watched_is_read_again_after_a_minute(wanted: EncoderModel, seconds: float | None) -> None:
    assert plan(wanted, recorded(wanted)).requeue_after == seconds


def test_events_of_a_pod_that_starts_are_read_again() -> None:
    wanted = model()
    found = recorded(wanted)
    metadata = {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": found.hash}}
    containers = [{"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    status = {"phase": "Pending", "containerStatuses": containers}
    pod = parse_pod({"metadata": metadata, "spec": {"nodeName": "node"}, "status": status})
    assert plan(wanted, found, pods=(pod,)).requeue_after == 30.0


def test_children_of_a_deleted_model_are_waited_for() -> None:
    found = plan(parsed_model(), stale_children=("Job minilm-prep",))
    assert (found.actions, found.events, found.requeue_after) == ((), (), 1.0)


def test_a_paused_model_reports_its_artifact_and_what_it_would_delete() -> None:
    wanted = model({"spec.paused": True, "spec.parity.mode": "Disabled"})
    labels = {naming.MODEL: "minilm", naming.MANAGED_BY: naming.MANAGER}
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "minilm", "labels": labels}}
    serving = recorded(wanted)
    metadata = {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": serving.hash}}
    gates = [{"type": kind, "status": "True"} for kind in ("Ready", naming.GATE)]
    pod = parse_pod({"metadata": metadata, "status": {"phase": "Running", "conditions": gates}})
    found = plan(wanted, serving, disruption_budget=budget, pods=(pod,))
    assert found.actions == ()
    assert found.status["phase"] == "Serving"
    conditions = {entry["type"]: entry for entry in found.status["conditions"]}
    assert (conditions["ArtifactReady"]["status"], conditions["ArtifactReady"]["reason"]) == ("True", "Prepared")
    assert "sha256:a" in conditions["ArtifactReady"]["message"]
    assert conditions["UpToDate"]["reason"] == "Paused"
    assert "PodDisruptionBudget minilm" in conditions["UpToDate"]["message"]
