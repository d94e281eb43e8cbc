"""What a reconcile does with the slots for prep Jobs: it takes one, and gives back what it does not use."""

from __future__ import annotations

import asyncio
import copy

import httpx2
import pytest

from encoder_operator.client.client import Client
from encoder_operator.client.errors import Conflict, RequestRejected, Unavailable
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.metrics.phase_gauge import PhaseGauge
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.fake_cluster import FakeCluster, Fault
from encoder_operator.tests.harness import PREPARED, Harness, encoder_model

MODEL, OTHER, LAST = (NamespacedName("demo", name) for name in ("minilm", "other", "last"))


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def slots(harness: Harness) -> PrepSlots:
    """A single slot, of which the harness's operator decides."""
    found = PrepSlots(1)
    client = Client(config=FakeCluster.config(), transport=harness.fake)
    harness.reconciler = Reconciler(client, harness.operator_settings, prep_slots=found)
    return found


class Remembered:
    """An operator with all that it remembers of the models."""

    def __init__(self, harness: Harness) -> None:
        self.progress, self.phases, self.slots = WatchProgress(), PhaseGauge(), PrepSlots(9)
        harness.reconciler = Reconciler(
            Client(config=FakeCluster.config(), transport=harness.fake),
            harness.operator_settings,
            watch_progress=self.progress,
            prep_slots=self.slots,
            phase_gauge=self.phases,
        )

    def of(self, key: NamespacedName) -> list[bool]:
        """Return whether the versions that were read, the phase and a slot of a model are remembered."""
        return [key in self.progress.models, key in self.phases.models, self.slots.has_job(key)]


def enqueued(slots: PrepSlots) -> list[NamespacedName]:
    found: list[NamespacedName] = []
    slots.on_free(found.append)
    return found


async def test_a_job_that_the_api_server_rejects_holds_no_slot(harness: Harness, slots: PrepSlots) -> None:
    turns = enqueued(slots)
    harness.fake.forbidden = {"POST jobs"}
    slots.wait(MODEL)
    slots.wait(OTHER)
    with pytest.raises(RequestRejected, match="jobs is forbidden"):
        await harness.reconcile()
    assert not slots.has_job(MODEL)
    assert turns[-1] == OTHER
    assert harness.condition("Degraded") == ("True", "WriteRefused")
    # and nothing in the status claims that it exists
    assert harness.condition("ArtifactReady") == harness.condition("Ready") == ("False", "WriteRefused")
    assert (harness.status["phase"], harness.status.get("prepJob")) == ("Failed", None)
    assert sorted(event["reason"] for event in harness.fake.of("events")) == ["Degraded", "WriteRefused"]
    harness.fake.forbidden = set()
    slots.leave(OTHER)
    await harness.reconcile()
    assert (harness.status["phase"], harness.condition("ArtifactReady")) == ("Preparing", ("False", "Preparing"))
    assert "PrepStarted" in {event["reason"] for event in harness.fake.of("events")}


async def test_a_job_holds_its_slot_until_it_has_finished(harness: Harness, slots: PrepSlots) -> None:
    # created by the first reconcile, and read by the second
    for _ in range(2):
        await harness.reconcile()
        assert slots.has_job(MODEL)
        assert slots.wait_reason(OTHER)
    harness.jobs()
    await harness.reconcile()
    # a finished Job stays for its log
    assert harness.fake.of("jobs", component="prep")
    assert not slots.has_job(MODEL)
    assert slots.wait_reason(OTHER) == ""


@pytest.mark.parametrize(
    ("code", "report", "condition"),
    [
        (0, PREPARED, ("True", "Prepared")),
        (44, {"code": "RepositoryNotFound", "message": "no such repository"}, ("False", "RepositoryNotFound")),
    ],
)
async def test_a_sidecar_that_runs_on_keeps_neither_slot_nor_result(
    harness: Harness, slots: PrepSlots, code: int, report: Json, condition: tuple[str, str]
) -> None:
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="prep")
    harness.fake.put("nodes", {"metadata": {"name": "node"}})
    harness.end_job(job, code, report)
    pod = copy.deepcopy(harness.fake.objects["pods", "demo", f"{job['metadata']['name']}-x"])
    pod["status"]["phase"] = "Running"
    pod["status"]["containerStatuses"].append({"name": "mesh", "state": {"running": {}}})
    harness.fake.put("pods", pod)
    # its controller waits for the whole pod
    harness.fake.put("jobs", job)
    await harness.reconcile()
    assert harness.condition("ArtifactReady") == condition
    assert slots.has_job(MODEL) is bool(code)
    # the list of a resync has no pods
    slots.reset([job])
    assert slots.has_job(MODEL) is bool(code)


async def test_a_job_whose_pod_has_ended_keeps_its_slot_until_it_has_ended_itself(
    harness: Harness, slots: PrepSlots
) -> None:
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="prep")
    harness.end_job(job, 0, PREPARED)
    # its controller has not seen the pod's end yet
    harness.fake.put("jobs", job)
    await harness.reconcile()
    assert slots.has_job(MODEL)


async def test_a_job_whose_pod_does_not_start_leaves_its_slot_to_others(harness: Harness, slots: PrepSlots) -> None:
    elsewhere = NamespacedName("elsewhere", "minilm")
    await harness.reconcile()
    slots.wait(elsewhere)
    assert not slots.may_start(elsewhere)
    (job,) = harness.fake.of("jobs", component="prep")
    job["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    await harness.reconcile()
    assert slots.has_job(MODEL)
    assert slots.may_start(elsewhere)


async def test_a_parity_job_holds_no_slot(harness: Harness, slots: PrepSlots) -> None:
    for _ in range(5):
        await harness.reconcile()
        if harness.fake.of("jobs", component="parity"):
            break
        harness.jobs()
        harness.deployment()
    assert harness.condition("Verified") == ("Unknown", "ParityRunning")
    await harness.reconcile()
    assert not slots.has_job(MODEL)
    assert slots.wait_reason(OTHER) == ""


@pytest.mark.parametrize("ends", ["deleted", "finished"])
async def test_the_job_of_a_deleted_model_holds_its_slot_until_it_ends(
    harness: Harness, slots: PrepSlots, ends: str
) -> None:
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="prep")
    harness.fake.remove("encodermodels", "demo", "minilm")
    # the garbage collector has not come yet
    harness.fake.put("jobs", job)
    await harness.reconcile()
    assert slots.has_job(MODEL)
    if ends == "deleted":
        harness.fake.remove("jobs", "demo", job["metadata"]["name"])
    else:
        harness.fake.put("jobs", {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    await harness.reconcile()
    assert not slots.has_job(MODEL)


async def test_a_slot_whose_job_was_never_created_is_given_back_by_the_list_of_jobs(
    harness: Harness, slots: PrepSlots
) -> None:
    # the request may have been executed all the same
    harness.fake.fault = Fault(write=2, how="fails", when="before")
    with pytest.raises(Unavailable):
        await harness.reconcile()
    assert slots.has_job(MODEL)
    assert harness.fake.of("jobs") == []
    slots.reset([])
    assert not slots.has_job(MODEL)


async def test_a_deleted_model_whose_children_cannot_be_read_reports_nothing(
    harness: Harness, slots: PrepSlots
) -> None:
    await harness.reconcile()
    # deleted between the reads
    harness.fake.remove("encodermodels", "demo", "minilm")
    harness.fake.forbidden = {"GET jobs"}
    with pytest.raises(RequestRejected, match="jobs is forbidden"):
        await harness.reconcile()


async def test_a_queued_model_gets_the_next_slot(harness: Harness, slots: PrepSlots) -> None:
    slots.set_jobs(OTHER, ["other-prep"])
    await harness.reconcile()
    turns = enqueued(slots)
    slots.set_jobs(OTHER, [])
    assert turns == [MODEL]


async def test_two_models_that_are_reconciled_at_once_do_not_take_the_same_slot(
    harness: Harness, slots: PrepSlots
) -> None:
    class TakesTime(httpx2.AsyncBaseTransport):
        """Lets other reconciles run during each request."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await asyncio.sleep(0)
            return await harness.fake.handle_async_request(request)

    other = encoder_model()
    other["metadata"]["name"] = "other"
    harness.fake.put("encodermodels", other)
    client = Client(config=FakeCluster.config(), transport=TakesTime())
    reconciler = Reconciler(client, harness.operator_settings, prep_slots=slots)
    await asyncio.gather(*(reconciler.reconcile(*key) for key in (MODEL, OTHER)))
    assert len(harness.fake.of("jobs", component="prep")) == 1
    assert slots.has_job(MODEL) != slots.has_job(OTHER)


async def test_a_job_whose_name_was_taken_for_a_moment_is_no_rejected_write(harness: Harness, slots: PrepSlots) -> None:
    class Taken(httpx2.AsyncBaseTransport):
        """Answers that the Job exists, which is gone when it is read."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method == "POST" and request.url.path.endswith("/jobs"):
                return httpx2.Response(409, json={"message": "it exists", "code": 409, "reason": "AlreadyExists"})
            return await harness.fake.handle_async_request(request)

    client = Client(config=FakeCluster.config(), transport=Taken())
    with pytest.raises(Conflict, match="it exists"):
        await Reconciler(client, harness.operator_settings, prep_slots=slots).reconcile(*MODEL)
    assert "conditions" not in harness.status


async def test_a_rejected_write_beside_a_running_job_gives_no_slot_back(harness: Harness, slots: PrepSlots) -> None:
    await harness.reconcile()
    turns = enqueued(slots)
    slots.wait(OTHER)
    # the owner reference of the volume is removed
    harness.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    harness.fake.forbidden = {"PATCH persistentvolumeclaims"}
    with pytest.raises(RequestRejected, match="persistentvolumeclaims is forbidden"):
        await harness.reconcile()
    assert slots.has_job(MODEL)
    assert OTHER not in turns


@pytest.mark.parametrize("refused", ["jobs", "configmaps"], ids=["a child", "what is read beside the children"])
async def test_what_cannot_be_read_is_reported(harness: Harness, slots: PrepSlots, refused: str) -> None:
    await harness.reconcile()
    harness.edit(lambda live: live["spec"].update(parity={"inputs": {"configMapRef": {"name": "cases"}}}))
    harness.fake.forbidden = {f"GET {refused}"}

    def others() -> Json:
        return {name: value for name, value in harness.status.items() if name not in ("conditions", "phase")}

    before = others()
    with pytest.raises(RequestRejected, match=f"{refused} is forbidden"):
        await harness.reconcile()
    assert harness.condition("Degraded")[0] == "True"
    assert harness.status["phase"] == "Failed"
    # everything else is as it was
    assert others() == before
    assert harness.condition("ArtifactReady") == ("False", "Preparing")


@pytest.mark.parametrize("reason", ["suspended", "deleted", "unreadable"])
async def test_a_model_that_needs_no_slot_any_longer_gives_up_its_turn(
    harness: Harness, slots: PrepSlots, reason: str
) -> None:
    slots.set_jobs(OTHER, ["other-prep"])
    await harness.reconcile()
    assert harness.condition("ArtifactReady") == ("False", "Queued")
    slots.wait(LAST)
    if reason == "suspended":
        harness.edit(lambda live: live["spec"].update(suspend=True))
        await harness.reconcile()
    elif reason == "deleted":
        harness.fake.remove("encodermodels", "demo", "minilm")
        await harness.reconcile()
    else:
        harness.fake.forbidden = {"GET encodermodels"}
        with pytest.raises(RequestRejected):
            await harness.reconcile()
    turns = enqueued(slots)
    slots.set_jobs(OTHER, [])
    assert turns == [LAST]


async def test_models_of_a_namespace_that_is_not_served_any_more_are_forgotten(harness: Harness) -> None:
    remembered = Remembered(harness)
    elsewhere = NamespacedName("elsewhere", "minilm")
    other = encoder_model()
    other["metadata"]["namespace"] = elsewhere.namespace
    harness.fake.put("encodermodels", other)
    for key in (MODEL, elsewhere):
        await harness.reconciler.reconcile(*key)
        assert remembered.of(key) == [True, True, True]
    before = harness.fake.version
    harness.reconciler.forget("demo")
    assert remembered.of(MODEL) == [False, False, False]
    assert remembered.of(elsewhere) == [True, True, True]
    assert harness.fake.version == before


async def test_a_model_that_is_gone_is_forgotten(harness: Harness) -> None:
    remembered = Remembered(harness)
    await harness.reconcile()
    assert remembered.of(MODEL) == [True, True, True]
    # and its children at once
    harness.fake.remove("encodermodels", "demo", "minilm")
    await harness.reconcile()
    assert remembered.of(MODEL) == [False, False, False]


async def test_an_event_that_arrives_after_a_failed_reconcile_is_not_skipped(harness: Harness) -> None:
    remembered = Remembered(harness)
    harness.fake.forbidden = {"POST jobs"}
    with pytest.raises(RequestRejected, match="jobs is forbidden"):
        await harness.reconcile()
    version = harness.live["metadata"]["resourceVersion"]
    assert remembered.progress.record_event(MODEL, "EncoderModel", version)
    harness.fake.forbidden = set()
    await harness.reconcile()
    version = harness.live["metadata"]["resourceVersion"]
    assert not remembered.progress.record_event(MODEL, "EncoderModel", version)
