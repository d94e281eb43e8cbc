from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.manager.settings import Settings
from encoder_operator.status.reasons import Reason
from encoder_operator.tests.harness import SETTINGS, parsed_model
from encoder_operator.validation import tenancy
from encoder_operator.validation.errors import NotAccepted

ALL = {
    "spec.image": "mine:1",
    "spec.serving.podTemplate": {"metadata": {"labels": {"team": "search"}}},
    "spec.parity": {"mode": "Disabled", "thresholds": {"cosine": "0.5"}},
}


def limited(**limits: Any) -> Settings:
    return SETTINGS.model_copy(update=limits)


@pytest.mark.parametrize(
    ("changes", "limits", "said"),
    [
        ({"spec.image": "mine:1"}, {"allow_custom_images": False}, ("spec.image", "allowCustomImages")),
        (
            {"spec.serving.podTemplate": {"metadata": {"labels": {"team": "search"}}}},
            {"allow_pod_template": False},
            ("spec.serving.podTemplate", "allowPodTemplate"),
        ),
        (
            {"spec.parity": {"thresholds": {"cosine": "0.5"}}},
            {"allow_threshold_overrides": False},
            ("spec.parity.thresholds", "allowThresholdOverrides"),
        ),
        (
            {"spec.parity": {"mode": "Warn"}},
            {"weakest_parity_mode": "Enforce"},
            ("spec.parity.mode Warn", "weakestParityMode: Enforce"),
        ),
        (
            {"spec.parity": {"mode": "Disabled"}},
            {"weakest_parity_mode": "Warn"},
            ("spec.parity.mode Disabled", "weakestParityMode: Warn"),
        ),
    ],
)
def test_what_an_administrator_does_not_allow_is_not_accepted(
    changes: dict[str, Any], limits: dict[str, Any], said: tuple[str, str]
) -> None:
    with pytest.raises(NotAccepted) as error:
        parsed_model(changes, limited(**limits))
    assert error.value.reason is Reason.NOT_PERMITTED
    assert all(part in error.value.message for part in said)
    # the same limit allows everything else, and without it the spec is accepted
    parsed_model({}, limited(**limits))
    parsed_model(changes)


def test_a_single_team_may_set_everything() -> None:
    parsed_model(ALL, SETTINGS)


@pytest.mark.parametrize(
    ("mode", "weakest", "effective"),
    [
        ("Disabled", "Disabled", "Disabled"),
        ("Disabled", "Warn", "Warn"),
        ("Disabled", "Enforce", "Enforce"),
        ("Warn", "Disabled", "Warn"),
        ("Warn", "Enforce", "Enforce"),
        ("Enforce", "Disabled", "Enforce"),
        # of a spec that was not accepted, anything can be read
        ("Whatever", "Disabled", "Enforce"),
    ],
)
def test_the_stronger_of_the_wanted_and_the_weakest_mode_applies(mode: str, weakest: str, effective: str) -> None:
    assert tenancy.effective_mode(mode, limited(weakest_parity_mode=weakest)) == effective
