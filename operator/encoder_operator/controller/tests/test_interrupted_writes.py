"""Whatever happens to any single write, the cluster ends up the same.

Each scenario runs once undisturbed, to count its writes, and then once per write and moment: the write fails (an error before
it took effect, or a lost answer after), or the operator is killed right before or right after it and starts again.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from encoder_operator.client.errors import ApiServerError
from encoder_operator.tests.fake_cluster import Fault, Json, Killed
from encoder_operator.tests.harness import Harness, annotate, encoder_model, failing_report, passing_report


class Storm(Harness):
    """A world whose operator is started again when it dies, and looks again when a look fails."""

    async def reconcile(self) -> float | None:
        try:
            return await super().reconcile()
        except Killed:
            self.reconciler = self.operator()
        except ApiServerError:
            pass
        return await super().reconcile()

    async def turn(self, count: int = 1) -> None:
        """Let everybody do ``count`` steps."""
        for _ in range(count):
            await self.reconcile()
            self.jobs()
            self.deployment()


def spec(**changes: Any) -> Callable[[Json], None]:
    return lambda live: live["spec"].update(changes)


async def create(harness: Storm) -> None:
    await harness.settle()


async def create_and_fail(harness: Storm) -> None:
    harness.parity = failing_report
    await harness.settle()


async def update(harness: Storm) -> None:
    await harness.settle()
    harness.change(maxModelLen=64)
    await harness.settle()


async def failed_update(harness: Storm) -> None:
    await harness.settle()
    harness.parity = failing_report
    harness.change(maxModelLen=64)
    await harness.settle()


async def revert_in_the_middle(harness: Storm) -> None:
    await harness.settle()
    harness.change(maxModelLen=64)
    await harness.turn(2)
    harness.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    await harness.settle()


async def many_edits(harness: Storm) -> None:
    await harness.settle()
    for length in range(20):
        harness.change(maxModelLen=64 + length)
        await harness.reconcile()
        if length % 3 == 0:
            harness.deployment()
    await harness.settle()


async def suspend_and_resume(harness: Storm) -> None:
    await harness.settle()
    harness.edit(spec(suspend=True))
    await harness.settle()
    harness.edit(spec(suspend=False))
    await harness.settle()


async def retry(harness: Storm) -> None:
    harness.parity = failing_report
    await harness.settle()
    harness.parity = passing_report
    harness.edit(annotate(retry="1"))
    await harness.settle()


async def retried_preparation(harness: Storm) -> None:
    prepared = harness.prep
    harness.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    await harness.settle()
    harness.prep = prepared
    harness.edit(annotate(retry="1"))
    await harness.settle()


async def scale(harness: Storm) -> None:
    await harness.settle()
    harness.change(replicas=3)
    await harness.settle()
    harness.change(replicas=1)
    await harness.settle()


async def another_source(harness: Storm) -> None:
    await harness.turn()
    harness.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    await harness.settle()


async def delete_and_make_again(harness: Storm) -> None:
    await harness.settle()
    harness.fake.remove("encodermodels", "demo", "minilm")
    await harness.reconcile()
    assert {kind for kind, _, _ in harness.fake.objects} <= {"persistentvolumeclaims", "events"}
    harness.fake.put("encodermodels", encoder_model())
    await harness.settle()


SCENARIOS: list[Callable[[Storm], Awaitable[None]]] = [
    create,
    create_and_fail,
    update,
    failed_update,
    revert_in_the_middle,
    many_edits,
    suspend_and_resume,
    retry,
    retried_preparation,
    scale,
    another_source,
    delete_and_make_again,
]


EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


@pytest.mark.fault(
    "the operator is killed, or a write fails, before or after any single write",
    "the state before the next reconcile",
    "the same objects in the end, without duplicates or orphans",
)
@EACH
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_write_or_a_killed_operator_changes_nothing_in_the_end(
    scenario: Callable[[Storm], Awaitable[None]], when: Any
) -> None:
    # every write of these, and a sample of the others, which `make soak` makes good
    step = 1 if scenario in (create, update, failed_update) else 16 if scenario is many_edits else 4
    await disturbed(scenario, when, first=1 if when == "before" else 1 + step // 2, step=step)


@pytest.mark.soak
@EACH
@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_write_of_every_scenario_may_be_the_last(
    scenario: Callable[[Storm], Awaitable[None]], when: Any
) -> None:
    await disturbed(scenario, when, first=1, step=1)


async def disturbed(scenario: Callable[[Storm], Awaitable[None]], when: Any, *, first: int, step: int) -> None:
    calm = Storm()
    await scenario(calm)
    wanted, made, total = essence(calm), Counter(calm.fake.created), len(calm.fake.writes)
    assert total > 5
    for write in range(first, total + 1, step):
        harness = Storm()
        # the operator keeps nothing between two looks, so that one of the two is enough for each write
        harness.fake.fault = Fault(write, "fails" if write // step % 2 else "killed", when)
        await scenario(harness)
        assert essence(harness) == wanted, write
        twice = Counter(harness.fake.created) - made
        assert not {name for kind, name in twice if kind in ("jobs", "controllerrevisions")}, (write, twice)
        assert max((told(harness) - told(calm)).values(), default=1) == 1, write
        nothing_is_orphaned(harness)


def essence(harness: Harness) -> Json:
    """Return what must be the same: all but names that are drawn by lot, times, and how history came about."""
    found: Json = {}
    for plural in ("deployments", "services", "persistentvolumeclaims"):
        found[plural] = [{k: live.get(k) for k in ("spec",)} for live in harness.fake.of(plural)]
    for component in ("prep", "parity"):
        jobs = harness.fake.of("jobs", component=component)
        found[component] = [] if component == "parity" else [(j["metadata"]["name"], j["spec"]) for j in jobs]
    deployed = {
        d["spec"]["template"]["metadata"]["labels"]["encoders.dev/revision"] for d in harness.fake.of("deployments")
    }
    found["records"] = [
        (
            live["metadata"]["name"],
            {k: v for k, v in live["metadata"]["labels"].items() if k != "encoders.dev/claim-uid"},
            {k: v for k, v in live["data"].items() if k != "binding"},
        )
        for live in harness.fake.of("controllerrevisions")
        if live["metadata"]["labels"]["encoders.dev/revision"] in deployed
    ]
    found["endpoints"] = harness.endpoints()
    found["pods"] = len(harness.fake.of("pods", component="serving"))
    status = copy.deepcopy(harness.status)
    found["status"] = status
    text = json.dumps(found, sort_keys=True, default=str)
    text = re.sub(r"\d{4}-\d\d-\d\dT[^\"]*", "time", text)
    text = re.sub(r"(parity-)\d+", r"\1n", text)
    return dict(json.loads(text))


def nothing_is_orphaned(harness: Harness) -> None:
    uid = harness.live["metadata"]["uid"]
    records = harness.fake.of("controllerrevisions")
    for live in [*harness.fake.of("jobs"), *records, *harness.fake.of("deployments"), *harness.fake.of("services")]:
        assert [owner["uid"] for owner in live["metadata"]["ownerReferences"]] == [uid]
    revisions = {
        r["metadata"]["labels"]["encoders.dev/revision"]
        for r in harness.fake.of("controllerrevisions", component="revision")
    }
    assert {live["metadata"]["labels"]["encoders.dev/revision"] for live in records} == revisions
    assert len([job for job in harness.fake.of("jobs", component="parity") if "status" not in job]) == 0
    assert len(revisions) <= 7
    if "activeRevision" in harness.status:
        assert harness.status["activeRevision"] in revisions


def told(harness: Harness) -> Counter[tuple[str, str]]:
    return Counter((event["reason"], event["message"]) for event in harness.fake.of("events"))
