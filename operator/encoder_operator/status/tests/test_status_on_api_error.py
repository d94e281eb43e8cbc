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
    found = after_error({"phase": "Serving", "conditions": old}, message)
    return {entry["type"]: entry for entry in found["conditions"]}


def after_error(status: Json, message: str = "no quota", **more: bool) -> Json:
    found = status_on_api_error(status, status, RequestRejected(message, status=403), NOW, **more)
    Status.model_validate(found)
    return found


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


WORKING = [condition("Progressing", "True"), condition("Degraded", "False")]


def test_the_phase_is_that_of_a_model_with_a_problem() -> None:
    serving, starting = condition("Available", "True"), condition("Available", "False")
    assert after_error({"phase": "RollingOut", "conditions": [serving, *WORKING]})["phase"] == "Degraded"
    assert after_error({"phase": "Verifying", "conditions": [starting, *WORKING]})["phase"] == "Failed"
    assert after_error({"phase": "Suspended", "conditions": [starting, *WORKING]})["phase"] == "Suspended"


def test_ready_has_the_reason_why_a_model_is_not() -> None:
    pending = condition("Ready", "Unknown", "ParityPending")
    found = on_error([*WORKING, pending])["Ready"]
    assert (found["status"], found["reason"], found["message"]) == ("False", "WriteRefused", "no quota")
    # another rejection than the last time
    again = condition("Ready", "False", "WriteRefused")
    assert on_error([condition("Degraded", "True", "WriteRefused"), again])["Ready"]["message"] == "no quota"


def test_ready_keeps_a_cause_that_was_known_before_the_rejection() -> None:
    failed = condition("Ready", "False", "ParityFailed")
    assert on_error([condition("Degraded", "True", "ParityFailed"), failed])["Ready"] == failed
    suspended = condition("Ready", "False", "Suspended")
    found = after_error({"phase": "Suspended", "conditions": [*WORKING, suspended]})
    assert suspended in found["conditions"]


def test_a_preparation_that_cannot_start_is_not_reported_as_started() -> None:
    names = ("ArtifactReady", "UpToDate")
    planned = {"prepJob": "new", "conditions": [*(condition(name, "False", "Preparing") for name in names), *WORKING]}
    found = status_on_api_error(planned, {}, RequestRejected("no quota", status=403), NOW, preparation=True)
    reported = {entry["type"]: (entry["reason"], entry["message"]) for entry in found["conditions"]}
    assert reported["ArtifactReady"] == ("WriteRefused", "no quota")
    assert reported["UpToDate"] == ("WriteRefused", "m")
    assert "prepJob" not in found
