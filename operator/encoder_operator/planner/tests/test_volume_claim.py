"""The size, owner and storage class of a model's PVC, from states made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from encoder_operator.planner import artifact
from encoder_operator.planner.actions import Action, Apply
from encoder_operator.resources import persistent_volume_claim
from encoder_operator.state.observed import ObservedState, PersistentVolumeClaim
from encoder_operator.tests import harness

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def bound(size: str, **changes: Any) -> PersistentVolumeClaim:
    live = {"metadata": {"name": "minilm-artifacts"}, "spec": {"resources": {"requests": {"storage": size}}}}
    fields: dict[str, Any] = {"name": "minilm-artifacts", "uid": "c", "bound": True, "shared": True, "message": ""}
    return PersistentVolumeClaim(**{**fields, **changes}, live=live)


def sizes(actions: tuple[Action, ...]) -> list[str]:
    return [
        action.manifest["spec"]["resources"]["requests"]["storage"] for action in actions if isinstance(action, Apply)
    ]


@pytest.mark.parametrize(
    ("wanted_size", "pvc", "sent"),
    [
        ("2Gi", bound("1Gi"), ["2Gi"]),
        ("1Gi", bound("1Gi"), []),
        ("1024Mi", bound("1Gi"), []),
        ("1Gi", bound("2Gi"), []),
        ("2Gi", bound("1Gi", bound=False), []),
        ("2Gi", None, []),
    ],
)
def test_a_pvc_is_expanded_and_never_reduced(
    wanted_size: str, pvc: PersistentVolumeClaim | None, sent: list[str]
) -> None:
    create = {"size": wanted_size, "accessModes": ["ReadWriteMany"]}
    seen = ObservedState(now=NOW, pvc=pvc)
    for policy in ("Retain", "Delete"):
        model = harness.parsed_model({"spec.storage": {"create": create, "policy": policy}})
        assert sizes(artifact.volume_expansion(model, seen)) == sent
        # the owner is written without the size that is wanted, and together with it where the PVC is expanded
        kept = [_requested(pvc)] if pvc and policy == "Delete" and not sent else []
        assert sizes(artifact.pvc_ownership(model, seen)) == kept
    mine = harness.parsed_model({"spec.storage": {"claimName": "mine"}})
    assert artifact.volume_expansion(mine, seen) == artifact.pvc_ownership(mine, seen) == ()


@pytest.mark.parametrize(
    ("existing", "requested", "default", "name"),
    [
        (None, None, "", None),
        (None, None, "default", "default"),
        (None, "mine", "default", "mine"),
        # an existing PVC keeps the class that it got
        ("old", None, "default", "old"),
        ("", None, "default", None),
    ],
)
def test_a_pvc_has_the_storage_class_that_it_got_first(
    existing: str | None, requested: str | None, default: str, name: str | None
) -> None:
    create = {"size": "1Gi", "accessModes": ["ReadWriteMany"]} | ({"storageClassName": requested} if requested else {})
    model = harness.parsed_model({"spec.storage": {"create": create, "policy": "Retain"}})
    assert model.spec.storage.create
    pvc = None if existing is None else bound("1Gi")
    if pvc and existing:
        pvc.live["spec"]["storageClassName"] = existing
    found = persistent_volume_claim.build(model, model.spec.storage.create, pvc, storage_class=default)
    assert found["spec"].get("storageClassName") == name


def _requested(pvc: PersistentVolumeClaim) -> str:
    return str(pvc.live["spec"]["resources"]["requests"]["storage"])
