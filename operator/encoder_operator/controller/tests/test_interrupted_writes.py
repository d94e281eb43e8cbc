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
from encoder_operator.tests.cluster_fake import Fault, Json, Killed
from encoder_operator.tests.world import World, annotate, fails, model, passes


class Storm(World):
    """A world whose operator is started again when it dies, and looks again when a look fails."""

    async def look(self) -> float | None:
        try:
            return await super().look()
        except Killed:
            self.reconciler = self.operator()
        except ApiServerError:
            pass
        return await super().look()

    async def turn(self, count: int = 1) -> None:
        """Let everybody do ``count`` steps."""
        for _ in range(count):
            await self.look()
            self.jobs()
            self.deployment()


def spec(**changes: Any) -> Callable[[Json], None]:
    return lambda live: live["spec"].update(changes)


async def create(world: Storm) -> None:
    await world.settle()


async def create_and_fail(world: Storm) -> None:
    world.parity = fails
    await world.settle()


async def update(world: Storm) -> None:
    await world.settle()
    world.change(maxModelLen=64)
    await world.settle()


async def failed_update(world: Storm) -> None:
    await world.settle()
    world.parity = fails
    world.change(maxModelLen=64)
    await world.settle()


async def revert_in_the_middle(world: Storm) -> None:
    await world.settle()
    world.change(maxModelLen=64)
    await world.turn(2)
    world.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    await world.settle()


async def many_edits(world: Storm) -> None:
    await world.settle()
    for length in range(20):
        world.change(maxModelLen=64 + length)
        await world.look()
        if length % 3 == 0:
            world.deployment()
    await world.settle()


async def suspend_and_resume(world: Storm) -> None:
    await world.settle()
    world.edit(spec(suspend=True))
    await world.settle()
    world.edit(spec(suspend=False))
    await world.settle()


async def retry(world: Storm) -> None:
    world.parity = fails
    await world.settle()
    world.parity = passes
    world.edit(annotate(retry="1"))
    await world.settle()


async def retried_preparation(world: Storm) -> None:
    prepared = world.prep
    world.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    await world.settle()
    world.prep = prepared
    world.edit(annotate(retry="1"))
    await world.settle()


async def scale(world: Storm) -> None:
    await world.settle()
    world.change(replicas=3)
    await world.settle()
    world.change(replicas=1)
    await world.settle()


async def another_source(world: Storm) -> None:
    await world.turn()
    world.edit(lambda live: live["spec"]["source"]["huggingFace"].update(revision="2" * 40))
    await world.settle()


async def delete_and_make_again(world: Storm) -> None:
    await world.settle()
    world.fake.remove("encodermodels", "demo", "minilm")
    await world.look()
    assert {kind for kind, _, _ in world.fake.objects} <= {"persistentvolumeclaims", "events"}
    world.fake.put("encodermodels", model())
    await world.settle()


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
    "what the next look finds",
    "the same objects in the end, none twice, none orphaned",
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
        world = Storm()
        # the operator keeps nothing between two looks, so that one of the two is enough for each write
        world.fake.fault = Fault(write, "fails" if write // step % 2 else "killed", when)
        await scenario(world)
        assert essence(world) == wanted, write
        twice = Counter(world.fake.created) - made
        assert not {name for kind, name in twice if kind in ("jobs", "controllerrevisions")}, (write, twice)
        assert max((told(world) - told(calm)).values(), default=1) == 1, write
        nothing_is_orphaned(world)


def essence(world: World) -> Json:
    """Return what must be the same: all but names that are drawn by lot, times, and how history came about."""
    found: Json = {}
    for plural in ("deployments", "services", "persistentvolumeclaims"):
        found[plural] = [{k: live.get(k) for k in ("spec",)} for live in world.fake.of(plural)]
    for component in ("prep", "parity"):
        jobs = world.fake.of("jobs", component=component)
        found[component] = [] if component == "parity" else [(j["metadata"]["name"], j["spec"]) for j in jobs]
    deployed = {
        d["spec"]["template"]["metadata"]["labels"]["encoders.dev/revision"] for d in world.fake.of("deployments")
    }
    found["records"] = [
        (
            live["metadata"]["name"],
            {k: v for k, v in live["metadata"]["labels"].items() if k != "encoders.dev/claim-uid"},
            {k: v for k, v in live["data"].items() if k != "binding"},
        )
        for live in world.fake.of("controllerrevisions")
        if live["metadata"]["labels"]["encoders.dev/revision"] in deployed
    ]
    found["endpoints"] = world.endpoints()
    found["pods"] = len(world.fake.of("pods", component="serving"))
    status = copy.deepcopy(world.status)
    found["status"] = status
    text = json.dumps(found, sort_keys=True, default=str)
    text = re.sub(r"\d{4}-\d\d-\d\dT[^\"]*", "time", text)
    text = re.sub(r"(parity-)\d+", r"\1n", text)
    return dict(json.loads(text))


def nothing_is_orphaned(world: World) -> None:
    uid = world.live["metadata"]["uid"]
    records = world.fake.of("controllerrevisions")
    for live in [*world.fake.of("jobs"), *records, *world.fake.of("deployments"), *world.fake.of("services")]:
        assert [owner["uid"] for owner in live["metadata"]["ownerReferences"]] == [uid]
    revisions = {
        r["metadata"]["labels"]["encoders.dev/revision"]
        for r in world.fake.of("controllerrevisions", component="revision")
    }
    assert {live["metadata"]["labels"]["encoders.dev/revision"] for live in records} == revisions
    assert len([job for job in world.fake.of("jobs", component="parity") if "status" not in job]) == 0
    assert len(revisions) <= 7
    if "activeRevision" in world.status:
        assert world.status["activeRevision"] in revisions


def told(world: World) -> Counter[tuple[str, str]]:
    return Counter((event["reason"], event["message"]) for event in world.fake.of("events"))
