from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from encoder_operator.controller import prep_slots as prep_slots_module
from encoder_operator.controller.prep_slots import PrepSlots, holds_slot, is_finished
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName

ONE, TWO, THREE, FOUR = (NamespacedName("demo", name) for name in ("one", "two", "three", "four"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def prep_slots(limit: int, per_namespace: int | None = None) -> tuple[PrepSlots, list[NamespacedName]]:
    """Return slots, and the models that they have enqueued."""
    enqueued: list[NamespacedName] = []
    found = PrepSlots(limit, per_namespace)
    found.on_free(enqueued.append)
    return found, enqueued


def start(slots: PrepSlots, key: NamespacedName) -> bool:
    """Do what a reconcile does for a model that needs a prep Job; return whether it has started one."""
    if slots.wait_reason(key):
        slots.wait(key)
        return False
    slots.reserve(key)
    slots.set_jobs(key, [f"{key.name}-prep"])
    return True


def test_a_reserved_slot_is_in_use() -> None:
    slots, _ = prep_slots(2)
    slots.reserve(ONE)
    slots.reserve(TWO)
    assert slots.wait_reason(THREE) == "Waiting for one of 2 preparations of other EncoderModels to finish"
    slots.set_jobs(ONE, ["one-prep"])
    assert slots.wait_reason(ONE) == ""
    assert slots.wait_reason(THREE)


def test_a_free_slot_enqueues_only_the_next_model() -> None:
    slots, enqueued = prep_slots(1)
    assert [start(slots, key) for key in (ONE, TWO, THREE)] == [True, False, False]
    slots.set_jobs(ONE, ["one-prep"])
    assert enqueued == []
    slots.set_jobs(ONE, [])
    assert enqueued == [TWO]
    # neither the one behind it nor a new one takes the slot first
    assert [start(slots, key) for key in (THREE, FOUR)] == [False, False]
    assert slots.may_start(TWO)
    assert not slots.may_start(THREE)
    assert start(slots, TWO)
    assert slots.wait_reason(THREE)


def test_turns_of_many_namespaces_are_forgotten_oldest_first() -> None:
    slots, enqueued = prep_slots(1)
    keys = [NamespacedName(f"tenant-{number}", "m") for number in range(prep_slots_module._MAX_TURNS + 2)]
    for key in keys:
        assert start(slots, key)
        slots.set_jobs(key, [])
    assert len(slots._last_turn) == prep_slots_module._MAX_TURNS
    # the first two are forgotten, and come before those that had a turn later
    previous = ONE
    assert start(slots, previous)
    for key in (keys[-1], keys[3], keys[0]):
        slots.wait(key)
    for turn in (keys[0], keys[3], keys[-1]):
        enqueued.clear()
        slots.set_jobs(previous, [])
        assert enqueued == [turn]
        assert start(slots, turn)
        previous = turn


def test_the_namespace_whose_last_turn_is_longest_ago_is_next() -> None:
    slots, enqueued = prep_slots(1)
    a, b, c, new = (NamespacedName(tenant, "m") for tenant in ("a", "b", "c", "new"))
    for key in (a, b, a, c):
        assert start(slots, key)
        slots.set_jobs(key, [])
    assert start(slots, ONE)
    # in another order than that of their turns
    for key in (c, a, b, new):
        slots.wait(key)
    previous = ONE
    for turn in (new, b, a, c):
        enqueued.clear()
        slots.set_jobs(previous, [])
        assert enqueued == [turn]
        assert start(slots, turn)
        previous = turn


def test_a_model_that_is_reconciled_while_it_waits_keeps_its_place() -> None:
    slots, enqueued = prep_slots(1)
    assert [start(slots, key) for key in (ONE, TWO, THREE)] == [True, False, False]
    # its own Jobs, of which there are none, are read in each reconcile
    slots.set_jobs(TWO, [])
    assert not start(slots, TWO)
    slots.set_jobs(ONE, [])
    assert enqueued == [TWO]


def test_a_list_of_all_jobs_sets_the_count_right() -> None:
    slots, enqueued = prep_slots(1, per_namespace=2)
    slots.set_jobs(ONE, ["one-prep"])
    slots.wait(TWO)
    meta = {"namespace": "demo", "name": "x", "labels": {"encoders.dev/model": "one"}}
    running = {"metadata": meta, "status": {"conditions": [{"type": "Complete", "status": "False"}]}}
    slots.reset([running])
    assert (bool(slots.wait_reason(TWO)), enqueued) == (True, [])
    assert slots.has_job(ONE)
    # what a reconcile has found out about its pods is not in the list
    slots.set_jobs(ONE, [], pending=["x"])
    enqueued.clear()
    slots.reset([running])
    assert (slots.wait_reason(TWO), enqueued, slots.has_job(ONE)) == ("", [TWO], True)
    ended = {"metadata": meta, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    slots.reset([ended])
    assert not slots.has_job(ONE)


def test_a_model_that_no_longer_needs_a_slot_leaves_the_queue() -> None:
    slots, enqueued = prep_slots(1)
    assert [start(slots, key) for key in (ONE, TWO, THREE)] == [True, False, False]
    slots.leave(TWO)
    slots.set_jobs(ONE, [])
    assert enqueued == [THREE]
    # nor does it keep the slot that it was enqueued for
    slots.wait(FOUR)
    slots.leave(THREE)
    assert enqueued[1:] == [FOUR]


def test_a_job_that_cannot_run_holds_no_slot_but_counts_in_its_namespace() -> None:
    slots, enqueued = prep_slots(2, per_namespace=2)
    other = NamespacedName("other", "one")
    assert [start(slots, key) for key in (ONE, TWO, THREE, other)] == [True, True, False, False]
    slots.set_jobs(ONE, [], pending=["one-prep"])
    slots.set_jobs(TWO, [], pending=["two-prep"])
    assert set(enqueued) == {other}
    assert start(slots, other)
    limit = "in namespace demo to finish; the limit per namespace is 2"
    assert slots.wait_reason(THREE) == f"Waiting for one of 2 unfinished preparations {limit}"
    slots.set_jobs(ONE, [])
    assert start(slots, THREE)


def test_free_slots_go_to_three_tenants_in_turn() -> None:
    slots, enqueued = prep_slots(3, per_namespace=2)
    tenants = {tenant: [NamespacedName(tenant, f"m{n}") for n in range(12)] for tenant in ("busy", "small", "late")}
    # the first tenant asks for everything before the others come
    for key in (*tenants["busy"], *tenants["small"][:2], *tenants["late"][:2]):
        start(slots, key)
    running = [*tenants["busy"][:2], tenants["small"][0]]
    assert [key for keys in tenants.values() for key in keys if slots.has_job(key)] == running
    order: list[str] = []
    while running:
        enqueued.clear()
        slots.set_jobs(running.pop(0), [])
        for key in dict.fromkeys(enqueued):
            assert start(slots, key)
            running.append(key)
            order.append(key.namespace)
        for tenant in tenants:
            assert sum(key.namespace == tenant for key in running) <= 2
    assert order[:4] == ["late", "busy", "small", "late"]
    assert order.count("busy") == 10


@pytest.mark.parametrize(
    ("max_preps", "per_namespace", "namespaces", "found"),
    [(4, 0, [], 2), (5, 0, [], 3), (1, 0, [], 1), (4, 0, ["a"], 4), (4, 0, ["a", "b"], 2), (4, 3, ["a"], 3)],
)
def test_a_namespace_may_use_half_of_the_slots_unless_it_is_alone(
    max_preps: int, per_namespace: int, namespaces: list[str], found: int
) -> None:
    settings = Settings(max_preps=max_preps, max_preps_per_namespace=per_namespace, namespaces=namespaces)
    assert settings.namespace_max_preps == found


def pod(phase: str = "Pending", scheduled: str = "True", owner: str = "job") -> Any:
    return {
        "metadata": {"ownerReferences": [{"kind": "Job", "uid": owner, "controller": True}]},
        "status": {"phase": phase, "conditions": [{"type": "PodScheduled", "status": scheduled}]},
    }


@pytest.mark.parametrize(
    ("age", "pods", "holds"),
    [
        (1, [], True),
        (2.9, [], True),
        (3, [], False),
        (10, [pod("Running", owner="another")], False),
        (10, [pod()], True),
        (10, [pod("Running")], True),
        (10, [pod(scheduled="False")], False),
        (10, [pod("Failed")], True),
        (10, [pod("Failed"), pod(scheduled="False")], False),
    ],
    ids=[
        "new",
        "almost late",
        "no pod",
        "pod of another",
        "starts",
        "runs",
        "unscheduled",
        "between attempts",
        "second unscheduled",
    ],
)
def test_a_job_holds_a_slot_while_its_pod_runs_or_is_about_to(age: float, pods: list[Any], holds: bool) -> None:
    created = (NOW - timedelta(seconds=age)).isoformat()
    assert holds_slot({"metadata": {"uid": "job", "creationTimestamp": created}}, pods, NOW) is holds


def gauges() -> tuple[float, ...]:
    """Return the models that are running, pending and queued, as the metrics have them."""
    found = {sample.labels["state"]: sample.value for metric in metrics.PREPS.collect() for sample in metric.samples}
    return found["running"], found["pending"], found["queued"]


def test_metrics_follow_each_step() -> None:
    slots, _ = prep_slots(2)
    slots.reserve(ONE)
    assert gauges() == (1, 0, 0)
    slots.set_jobs(ONE, ["one-prep"])
    slots.reserve(TWO)
    assert gauges() == (2, 0, 0)
    slots.wait(THREE)
    assert gauges() == (2, 0, 1)
    slots.set_jobs(TWO, [], pending=["two-prep"])
    assert gauges() == (1, 1, 1)
    # one Job runs while another one of the same model does not
    slots.set_jobs(TWO, ["two-new"], pending=["two-prep"])
    assert gauges() == (2, 0, 1)
    slots.leave(THREE)
    assert gauges() == (2, 0, 0)
    slots.reset([])
    assert gauges() == (0, 0, 0)


@pytest.mark.parametrize(("pods", "holds"), [([], False), ([pod("Failed")], False), ([pod("Running")], True)])
def test_a_suspended_job_holds_a_slot_only_until_its_pod_is_gone(pods: list[Any], holds: bool) -> None:
    meta = {"uid": "job", "creationTimestamp": NOW.isoformat()}
    assert holds_slot({"metadata": meta, "spec": {"suspend": True}}, pods, NOW) is holds


def test_jobs_of_namespaces_that_were_not_read_keep_their_slots() -> None:
    slots, _ = prep_slots(9)
    read, unread, held = (NamespacedName(name, "m") for name in ("read", "unread", "held"))
    for key in (read, unread):
        slots.set_jobs(key, ["running"], pending=["pending"])
    slots.set_jobs(held, [], pending=["pending"])
    slots.reserve(ONE)
    slots.reset([], unread={"unread", "held"})
    assert [slots.has_job(key) for key in (read, unread, held, ONE)] == [False, True, True, True]
    assert gauges() == (2, 1, 0)


def test_slots_that_are_all_in_use_are_free_for_nobody() -> None:
    slots, enqueued = prep_slots(1)
    # more Jobs than slots: pods that were scheduled after all
    for key in (ONE, TWO):
        slots.set_jobs(key, ["prep"])
    slots.wait(THREE)
    slots.set_jobs(TWO, [])
    assert (enqueued, slots.may_start(THREE)) == ([], False)
    slots.set_jobs(ONE, [])
    assert (enqueued, slots.may_start(THREE)) == ([THREE], True)
    # a model that neither waits nor has a Job may not start before those that wait
    assert not slots.may_start(FOUR)
    assert slots.wait_reason(FOUR) == "Waiting for the preparations of EncoderModels that were queued earlier"


def test_several_free_slots_enqueue_several_models_of_one_namespace() -> None:
    slots, enqueued = prep_slots(2)
    for key in (ONE, TWO):
        slots.set_jobs(key, ["prep"])
    for key in (THREE, FOUR):
        slots.wait(key)
    slots.reset([])
    assert enqueued == [THREE, FOUR]
    slots.leave(THREE)
    slots.leave(FOUR)
    # nothing is kept for a namespace in which nobody waits
    assert slots._waiting == {}


def test_a_namespace_at_its_limit_waits_for_its_own() -> None:
    slots, _ = prep_slots(2, per_namespace=1)
    slots.reserve(ONE)
    expected = "Waiting for one of 1 unfinished preparation in namespace demo to finish; the limit per namespace is 1"
    assert slots.wait_reason(TWO) == expected
    # without a limit per namespace, one namespace may take all slots
    slots, _ = prep_slots(2)
    slots.reserve(ONE)
    assert slots.wait_reason(TWO) == ""


@pytest.mark.parametrize(
    ("status", "finished"),
    [
        (None, False),
        ({"conditions": None}, False),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, False),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, False),
    ],
)
def test_a_job_has_finished_by_its_conditions(status: Any, finished: bool) -> None:
    assert is_finished({"status": status}) is finished


def test_slots_of_a_forgotten_namespace_go_to_the_others() -> None:
    slots, enqueued = prep_slots(2)
    other = NamespacedName("other", "m")
    kept = NamespacedName("other", "kept")
    slots.set_jobs(ONE, ["prep"], ["pending"])
    slots.set_jobs(kept, [], ["pending"])
    slots.reserve(TWO)
    for key in (THREE, other):
        slots.wait(key)
    slots.forget("demo")
    assert [slots.has_job(key) for key in (ONE, TWO, kept)] == [False, False, True]
    assert set(enqueued) == {other}
    assert metrics.PREPS.labels("queued")._value.get() == 1
