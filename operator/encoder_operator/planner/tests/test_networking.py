"""The objects of a model's network, from states made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from encoder_operator.planner import networking
from encoder_operator.planner.actions import Apply, Delete
from encoder_operator.state.observed import ObservedState
from encoder_operator.tests.harness import parsed_model
from encoder_operator.validation.errors import NotAccepted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"encoders.dev/model": "minilm", "app.kubernetes.io/managed-by": "encoder-operator"}
OURS = {"metadata": {"name": "minilm", "labels": LABELS}}
FOREIGN = [
    {"metadata": {"name": "minilm"}},
    {"metadata": {"name": "minilm", "labels": {**LABELS, "encoders.dev/model": "other"}}},
    {"metadata": {"name": "minilm", "labels": {**LABELS, "app.kubernetes.io/managed-by": "helm"}}},
]
ROUTE = {"parentRefs": [{"name": "gateway"}], "hostnames": ["m.example"]}
REQUESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "NetworkPolicy": ("network_policy", {"spec.network": {"networkPolicy": {}}}),
    "HTTPRoute": ("http_route", {"spec.network": {"httpRoute": ROUTE}}),
    "PodDisruptionBudget": ("disruption_budget", {"spec.serving.replicas": 2}),
}


def planned(changes: dict[str, Any] | None = None, **observed: Any) -> list[tuple[str, str]]:
    """Return what is applied and deleted, without the Service, which comes first."""
    seen = ObservedState(now=NOW, **{"gateway_api": True, **observed})
    first, *others = networking.plan(parsed_model(changes), seen)
    assert isinstance(first, Apply)
    assert (first.manifest["kind"], first.live) == ("Service", seen.service)
    return [
        ("apply", action.manifest["kind"]) if isinstance(action, Apply) else ("delete", action.kind)
        for action in others
        if isinstance(action, Apply | Delete)
    ]


@pytest.mark.parametrize("kind", REQUESTED)
def test_an_object_is_there_as_long_as_the_spec_requests_it(kind: str) -> None:
    field, changes = REQUESTED[kind]
    assert planned(changes) == planned(changes, **{field: OURS}) == [("apply", kind)]
    assert planned() == []
    assert planned(**{field: OURS}) == [("delete", kind)]


@pytest.mark.parametrize("kind", REQUESTED)
@pytest.mark.parametrize("live", FOREIGN, ids=["no labels", "another model", "another manager"])
def test_an_object_of_somebody_else_is_neither_taken_nor_deleted(kind: str, live: dict[str, Any]) -> None:
    field, changes = REQUESTED[kind]
    assert planned(**{field: live}) == []
    with pytest.raises(NotAccepted, match=f"{kind} minilm already exists and does not belong to this EncoderModel"):
        planned(changes, **{field: live})


def test_a_route_waits_for_the_gateway_api() -> None:
    _, changes = REQUESTED["HTTPRoute"]
    model = parsed_model(changes)
    for there in (True, False):
        seen = ObservedState(now=NOW, gateway_api=there)
        assert networking.gateway_api_missing(model, seen) is not there
        assert not networking.gateway_api_missing(parsed_model(), seen)
    assert planned(changes, gateway_api=False) == []


def test_the_service_is_compared_with_the_one_that_exists() -> None:
    assert planned(service={"spec": {}}) == []
