"""Which pods may serve under each mode of parity checks, and the policy of a manifest that was not accepted."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator import naming
from encoder_operator.planner import verification
from encoder_operator.planner.verification import VerificationState
from encoder_operator.tests.harness import SETTINGS, parsed_model, with_fields

ANY = set(VerificationState)


@pytest.mark.parametrize(
    ("mode", "serving"),
    [
        ("Disabled", ANY),
        ("Warn", ANY - {VerificationState.NONE}),
        ("Enforce", ANY - {VerificationState.NONE, VerificationState.FAILED}),
    ],
)
def test_the_mode_decides_which_pods_may_serve(mode: str, serving: set[VerificationState]) -> None:
    model = parsed_model({"spec.parity": {"mode": mode}})
    assert {state for state in ANY if verification.may_serve(model, state)} == serving


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"spec.parity": None},
        {"spec.parity": {"mode": "Warn"}},
        {"spec.parity": {"mode": "Disabled"}},
        {"spec.parity": {"thresholds": {"cosine": "0.5"}}},
        {"metadata.annotations": {naming.RETRY: "1"}},
    ],
)
def test_the_policy_of_a_manifest_is_that_of_the_model_that_it_was(changes: dict[str, Any]) -> None:
    model = parsed_model({path: value for path, value in changes.items() if value is not None})
    found = verification.parity_policy_of_manifest(with_fields(changes), SETTINGS)
    assert found == verification.parity_policy(model)


def test_a_manifest_gets_no_weaker_mode_than_the_administrator_allows() -> None:
    limited = SETTINGS.model_copy(update={"weakest_parity_mode": "Warn"})
    live = with_fields({"spec.parity": {"mode": "Disabled"}})
    assert verification.parity_policy_of_manifest(live, limited).mode == "Warn"
