"""Which objects are children of a model, by the controllers that their owner references name."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.revisions.hashing import Json
from encoder_operator.state import ownership

UID = "model-uid"
OWNER = {"apiVersion": "encoders.dev/v1alpha1", "kind": "EncoderModel", "name": "m", "uid": UID, "controller": True}


def child(uid: str, *owners: Json, component: str | None = None) -> Json:
    labels = {} if component is None else {"labels": {"encoders.dev/component": component}}
    return {"metadata": {"uid": uid, "ownerReferences": list(owners), **labels}}


def below(kind: str, uid: str) -> Json:
    return {"kind": kind, "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("changes", "ours", "before"),
    [
        ({}, True, False),
        ({"apiVersion": "encoders.dev/v2"}, True, False),
        ({"apiVersion": "encoders.dev.example.org/v1"}, False, False),
        ({"kind": "CronJob"}, False, False),
        ({"controller": False}, False, False),
        # "true" is no answer of an API server
        ({"controller": "true"}, False, False),
        ({"uid": "other"}, False, True),
        ({"uid": "other", "name": "n"}, False, False),
        ({"uid": "other", "kind": "CronJob"}, False, False),
        ({"uid": "other", "controller": False}, False, False),
    ],
)
def test_the_controller_is_the_model_or_an_earlier_one_of_its_name(
    changes: dict[str, Any], ours: bool, before: bool
) -> None:
    further = {"kind": "Node", "name": "m", "uid": "node"}
    live = child("x", further, OWNER | changes)
    assert (ownership.of_model(live, UID), ownership.of_namesake(live, "m", UID)) == (ours, before)


def test_what_has_no_owner_is_no_child() -> None:
    lives: list[Json] = [{"metadata": {}}, child("x")]
    for live in lives:
        assert ownership.controller(live) == {}
        assert not ownership.of_model(live, UID)
        assert not ownership.of_namesake(live, "m", UID)
        assert ownership.component(live) == ""


@pytest.mark.parametrize(
    ("labels", "owners", "expected"),
    [
        ({"encoders.dev/model": "m", "app.kubernetes.io/managed-by": "encoder-operator"}, [], True),
        # anyone sets one of them, for instance on a Service of their own in front of the model's pods
        ({"encoders.dev/model": "m"}, [], False),
        ({"app.kubernetes.io/managed-by": "encoder-operator"}, [], False),
        ({"encoders.dev/model": "n", "app.kubernetes.io/managed-by": "encoder-operator"}, [], False),
        ({}, [OWNER], True),
        ({"encoders.dev/model": "n"}, [OWNER], True),
    ],
)
def test_a_child_has_both_labels_or_its_owner(labels: dict[str, str], owners: list[Json], expected: bool) -> None:
    live = child("x", *owners)
    live["metadata"]["labels"] = labels
    assert ownership.belongs_to(live, "m", UID) is expected


FOUND: dict[str, list[Json]] = {
    "Job": [
        child("prep-job", OWNER, component="prep"),
        child("parity-job", OWNER, component="parity"),
        child("other-job", OWNER, component="other"),
        child("forged-job", component="prep"),
    ],
    "ReplicaSet": [
        child("set", below("Deployment", "deployment")),
        child("other-set", below("Deployment", "other")),
        child("forged-set", below("StatefulSet", "deployment")),
    ],
    "Pod": [
        child("serving", below("ReplicaSet", "set"), component="serving"),
        child("prep", below("Job", "prep-job"), component="prep"),
        child("parity", below("Job", "parity-job"), component="parity"),
        child("no component", below("ReplicaSet", "set")),
        child("a Job's component", below("ReplicaSet", "set"), component="prep"),
        child("a component without pods", below("Job", "other-job"), component="other"),
        child("the other Job", below("Job", "prep-job"), component="parity"),
        child("serving by a Job", below("Job", "prep-job"), component="serving"),
        child("another Deployment", below("ReplicaSet", "other-set"), component="serving"),
        child("a forged ReplicaSet", below("ReplicaSet", "forged-set"), component="serving"),
        child("a forged Job", below("Job", "forged-job"), component="prep"),
    ],
    "ControllerRevision": [child("record", OWNER), child("forged record")],
}


@pytest.mark.parametrize(
    ("deployment", "pods"),
    [
        (child("deployment", OWNER), ["serving", "prep", "parity"]),
        (child("deployment"), ["prep", "parity"]),
        (child("replaced", OWNER), ["prep", "parity"]),
        (None, ["prep", "parity"]),
    ],
    ids=["the model's", "another user's", "another one", "none"],
)
def test_children_are_those_whose_controllers_end_at_the_model(deployment: Json | None, pods: list[str]) -> None:
    found = ownership.children(FOUND, deployment, UID)
    assert [[live["metadata"]["uid"] for live in some] for some in (found.jobs, found.pods, found.records)] == [
        ["prep-job", "parity-job", "other-job"],
        pods,
        ["record"],
    ]
