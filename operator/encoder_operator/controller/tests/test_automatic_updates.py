"""Models are updated to newer images without an annotation: in the window, a limited number at once, verified, and rolled back on failure."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import get_args

import pytest
from pydantic import ValidationError

from encoder_operator.client.client import Client
from encoder_operator.controller.automatic_updates import AutomaticUpdates
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.manager.settings import Settings, Updates, UpdateWindow, Weekday
from encoder_operator.naming import NamespacedName
from encoder_operator.planner.automatic_update import is_open
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import PLUGIN, SETTINGS, Harness, annotate, encoder_model, failing_report

TODAY = datetime.now(UTC).weekday()
ANY_TIME = UpdateWindow()
# neither today nor, should the test run at midnight, tomorrow
NEVER = UpdateWindow(days=[get_args(Weekday)[(TODAY + 3) % 7]])


def newer(image: str, window: UpdateWindow = ANY_TIME) -> Settings:
    """Return settings with another engine image."""
    images = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: image}}})
    return SETTINGS.model_copy(update={"images": images, "updates": Updates(window=window)})


def operator(harness: Harness, settings: Settings) -> Reconciler:
    """Return a fresh operator that has already reconciled everything."""
    client = Client(config=FakeCluster.config(), transport=harness.fake)
    return Reconciler(client, settings, automatic_updates=AutomaticUpdates(settings.updates, warm_up=0))


async def serving(policy: str = "Automatic") -> Harness:
    """Return a harness whose model serves."""
    manifest = encoder_model()
    manifest["spec"]["rollout"] = {"updatePolicy": policy}
    harness = Harness(manifest)
    await harness.settle()
    return harness


def image(harness: Harness) -> str:
    template = harness.fake.of("deployments")[0]["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


async def updated(harness: Harness, settings: Settings) -> str:
    """Return the image after an upgrade of the operator."""
    harness.reconciler = operator(harness, settings)
    await harness.settle()
    return image(harness)


@pytest.mark.parametrize("policy", ["Manual", "Automatic"])
async def test_only_automatic_models_get_a_newer_image(policy: str) -> None:
    harness = await serving(policy)
    automatic = policy == "Automatic"
    assert (await updated(harness, newer("engine:2")) == "engine:2") is automatic
    assert harness.condition("UpdateAvailable")[0] == str(not automatic)
    assert harness.condition("Ready") == ("True", "Ready")
    # and the one after that
    assert (await updated(harness, newer("engine:3")) == "engine:3") is automatic


async def test_without_newer_defaults_nothing_is_written() -> None:
    harness = await serving()
    before = harness.fake.version
    await updated(harness, SETTINGS)
    assert harness.fake.version == before
    # neither by the operator that has made the newest revision
    await updated(harness, newer("engine:2"))
    before = harness.fake.version
    await updated(harness, newer("engine:2"))
    assert harness.fake.version == before


async def test_outside_the_window_no_update_starts_and_none_is_undone() -> None:
    harness = await serving()
    before = image(harness)
    assert await updated(harness, newer("engine:2", NEVER)) == before
    assert "update window" in harness.message("UpdateAvailable")
    assert await updated(harness, newer("engine:2")) == "engine:2"
    active = harness.status["activeRevision"]
    assert await updated(harness, newer("engine:2", NEVER)) == "engine:2"
    assert harness.status["activeRevision"] == active


async def test_an_update_in_progress_is_completed_after_the_window_and_a_restart() -> None:
    harness = await serving()
    harness.reconciler = operator(harness, newer("engine:2"))
    await harness.reconcile()
    assert harness.status["candidateRevision"]
    assert await updated(harness, newer("engine:2", NEVER)) == "engine:2"
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_newer_image_that_fails_is_rolled_back_and_not_retried() -> None:
    harness = await serving()
    before = image(harness)
    harness.parity = failing_report
    assert await updated(harness, newer("engine:2")) == before
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    jobs = len(harness.fake.of("jobs", component="parity"))
    await harness.settle()
    assert len(harness.fake.of("jobs", component="parity")) == jobs


async def test_an_annotation_of_the_user_does_not_undo_an_automatic_update() -> None:
    harness = await serving()
    harness.edit(annotate(update="1"))
    await harness.settle()
    assert await updated(harness, newer("engine:2")) == "engine:2"
    assert await updated(harness, newer("engine:2", NEVER)) == "engine:2"
    assert harness.live["metadata"]["annotations"] == {"encoders.dev/update": "1"}


async def test_one_model_at_a_time() -> None:
    limits = AutomaticUpdates(Updates(max_at_once=1), warm_up=0)
    now = datetime(2026, 11, 22, tzinfo=UTC)
    first, second = NamespacedName("a", "m"), NamespacedName("b", "m")
    automatic = {"rollout": {"updatePolicy": "Automatic"}}

    def status(up_to_date: str, reason: str) -> Json:
        return {
            "activeRevision": "0123456789",
            "conditions": [{"type": "UpToDate", "status": up_to_date, "reason": reason}],
        }

    limits.set(first, automatic, status("False", "RolloutInProgress"))
    assert limits.may_start(first, now)
    assert not limits.may_start(second, now)
    # the slot becomes free after success and after failure, and an update that the user requests takes none
    for end in (status("True", "Current"), status("False", "ParityFailed")):
        limits.set(first, automatic, end)
        assert limits.may_start(second, now)
        limits.set(first, automatic, status("False", "RolloutInProgress"))
    limits.set(first, {}, status("False", "RolloutInProgress"))
    assert limits.may_start(second, now)
    # the slot of a model that was deleted during its update
    limits.set(first, automatic, status("False", "RolloutInProgress"))
    assert not limits.may_start(second, now)
    limits.remove(first)
    assert limits.may_start(second, now)


@pytest.mark.parametrize("stopped", [{"suspend": True}, {"paused": True}, {"serving": {"replicas": 0}}])
async def test_an_update_that_the_user_has_stopped_leaves_its_slot_to_others(stopped: Json) -> None:
    harness = await serving()
    reconciler = harness.reconciler = operator(harness, newer("engine:2"))
    await harness.reconcile()
    other, now = NamespacedName("demo", "second"), datetime.now(UTC)
    assert not reconciler._automatic_updates.may_start(other, now)
    before = copy.deepcopy(harness.live["spec"])
    harness.edit(
        lambda live: live["spec"].update(stopped | {"serving": before["serving"] | stopped.get("serving", {})})
    )
    await harness.reconcile()
    assert reconciler._automatic_updates.may_start(other, now)
    # it goes on where it was stopped
    harness.edit(lambda live: live.update(spec=before))
    await harness.settle()
    assert image(harness) == "engine:2"
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_model_without_pods_is_updated_when_it_has_some() -> None:
    harness = await serving()
    harness.change(replicas=0)
    await harness.settle()
    before = image(harness)
    assert await updated(harness, newer("engine:2")) == before
    harness.change(replicas=1)
    await harness.settle()
    assert image(harness) == "engine:2"


async def test_two_models_of_one_cluster_are_updated_one_after_the_other() -> None:
    harness = await serving()
    other = copy.deepcopy(encoder_model())
    other["metadata"]["name"] = "second"
    other["spec"]["rollout"] = {"updatePolicy": "Automatic"}
    harness.fake.put("encodermodels", other)
    reconciler = operator(harness, newer("engine:2"))
    harness.reconciler = reconciler
    await harness.reconcile()
    assert harness.status["candidateRevision"]
    assert not reconciler._automatic_updates.may_start(NamespacedName("demo", "second"), datetime.now(UTC))
    await harness.settle()
    assert reconciler._automatic_updates.may_start(NamespacedName("demo", "second"), datetime.now(UTC))


def test_after_a_start_no_update_starts_until_those_in_progress_are_known() -> None:
    now = [100.0]
    limits = AutomaticUpdates(Updates(), clock=lambda: now[0])
    key, noon = NamespacedName("a", "m"), datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert not limits.may_start(key, noon)
    now[0] += 60
    assert limits.may_start(key, noon)


# 2026-11-22 is a Sunday
@pytest.mark.parametrize(
    ("window", "time", "expected"),
    [
        (UpdateWindow(), "22T13:00", True),
        (UpdateWindow(days=["Mon"]), "22T13:00", False),
        (UpdateWindow(start="02:00", end="05:00"), "22T02:00", True),
        (UpdateWindow(start="02:00", end="05:00"), "22T05:00", False),
        (UpdateWindow(start="22:00", end="04:00"), "22T23:00", True),
        (UpdateWindow(start="22:00", end="04:00"), "22T12:00", False),
        # the minute in which it opens is in it, on the day that it opens
        (UpdateWindow(start="22:00", end="04:00", days=["Sat"]), "21T22:00", True),
        (UpdateWindow(start="22:00", end="04:00", days=["Fri"]), "21T22:00", False),
        (UpdateWindow(start="22:00", end="04:00", days=["Sat"]), "21T21:59", False),
        # the night from Saturday to Sunday belongs to Saturday
        (UpdateWindow(start="22:00", end="04:00", days=["Sat"]), "22T03:59", True),
        (UpdateWindow(start="22:00", end="04:00", days=["Sun"]), "22T03:59", False),
        (UpdateWindow(start="22:00", end="04:00", days=["Sat"]), "22T04:00", False),
    ],
)
def test_window(window: UpdateWindow, time: str, expected: bool) -> None:
    assert is_open(window, datetime.fromisoformat(f"2026-11-{time}:00+00:00")) is expected


@pytest.mark.parametrize(
    "wrong", [{"start": "2:00", "end": "05:00"}, {"start": "02:00"}, {"start": "02:00", "end": "02:00"}, {"days": []}]
)
def test_an_invalid_window_is_rejected(wrong: Json) -> None:
    with pytest.raises(ValidationError):
        UpdateWindow.model_validate(wrong)
