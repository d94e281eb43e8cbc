"""The status after a request that the API server rejected, from statuses made by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from encoder_operator.api.v1alpha1.status import Status
from encoder_operator.client.errors import RequestRejected
from encoder_operator.revisions.hashing import Json
from encoder_operator.status.condition_values import MESSAGE_LIMIT
from encoder_operator.status.status import status_on_api_error

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE, TIME = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"


def condition(name: str, status: str, reason: str = "AsExpected", since: str = BEFORE) -> Json:
    return {"type": name, "status": status, "reason": reason, "message": "m", "lastTransitionTime": since}


def on_error(old: list[Json], message: str = "no quota") -> dict[str, Json]:
    """Return the conditions, by type, after an error at a model with these."""
    status = {"phase": "Serving", "conditions": old}
    found = status_on_api_error(status, status, RequestRejected(message, status=403), NOW)
    assert found["phase"] == "Serving"
    Status.model_validate(found)
    return {entry["type"]: entry for entry in found["conditions"]}


def test_progressing_and_degraded_report_it_and_the_others_stay_as_they_are() -> None:
    ready = condition("Ready", "True")
    found = on_error([ready, condition("Progressing", "True"), condition("Degraded", "False")])
    assert found["Ready"] == ready
    reported = {name: (found[name]["status"], found[name]["reason"]) for name in ("Progressing", "Degraded")}
    assert reported == {"Progressing": ("False", "WriteRefused"), "Degraded": ("True", "WriteRefused")}
    assert {found[name]["message"] for name in reported} == {"no quota"}


def test_the_time_is_that_of_the_change_of_the_status_and_not_of_the_message() -> None:
    found = on_error([condition("Progressing", "False"), condition("Degraded", "False")])
    assert (found["Progressing"]["lastTransitionTime"], found["Degraded"]["lastTransitionTime"]) == (BEFORE, TIME)


def test_a_message_of_the_api_server_is_cut_to_what_the_schema_allows() -> None:
    # an admission policy may say whatever it likes
    found = on_error([condition("Progressing", "True"), condition("Degraded", "False")], "x" * 40_000)
    assert {len(entry["message"]) for entry in found.values()} == {MESSAGE_LIMIT}


def test_a_model_that_has_no_conditions_yet_gets_the_two() -> None:
    assert set(on_error([])) == {"Progressing", "Degraded"}
