from __future__ import annotations

from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.naming import NamespacedName

ONE, TWO, THREE, FOUR = (NamespacedName("demo", name) for name in ("one", "two", "three", "four"))


def places(limit: int) -> tuple[PrepSlots, list[NamespacedName]]:
    woken: list[NamespacedName] = []
    found = PrepSlots(limit)
    found.on_free(woken.append)
    return found, woken


def test_a_reserved_slot_is_in_use() -> None:
    preps, _ = places(2)
    preps.reserve(ONE)
    preps.reserve(TWO)
    assert preps.used_by_others(THREE) == 2
    assert preps.used_by_others(ONE) == 1
    preps.set_jobs(ONE, ["one-prep"])
    assert (preps.used_by_others(ONE), preps.used_by_others(THREE)) == (0, 2)


def test_a_free_slot_enqueues_only_the_next_model() -> None:
    preps, woken = places(1)
    preps.reserve(ONE)
    preps.set_jobs(ONE, ["one-prep"])
    for key in (TWO, THREE):
        preps.wait(key)
    preps.set_jobs(ONE, ["one-prep"])
    assert woken == []
    preps.set_jobs(ONE, [])
    assert woken[:1] == [TWO]
    preps.reserve(TWO)
    preps.set_jobs(TWO, ["two-prep"])
    preps.wait(THREE)
    assert preps.used_by_others(THREE) == 1


def test_a_model_that_queues_just_after_a_slot_became_free_is_enqueued() -> None:
    preps, woken = places(1)
    preps.wait(TWO)
    assert woken == [TWO]


def test_a_list_of_all_jobs_sets_the_count_right() -> None:
    preps, woken = places(1)
    preps.set_jobs(ONE, ["one-prep"])
    preps.wait(TWO)
    meta = {"namespace": "demo", "name": "x", "labels": {"encoders.dev/model": "one"}}
    running = {"metadata": meta, "status": {"conditions": [{"type": "Complete", "status": "False"}]}}
    preps.reset([running])
    assert (preps.used_by_others(TWO), woken) == (1, [])
    assert preps.holds_slot(ONE)
    ended = {"metadata": meta, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    preps.reset([ended])
    assert (preps.used_by_others(TWO), woken) == (0, [TWO])


def test_a_model_that_no_longer_needs_a_slot_leaves_the_queue() -> None:
    preps, woken = places(1)
    preps.set_jobs(ONE, ["one-prep"])
    preps.wait(TWO)
    preps.set_jobs(TWO, [])
    preps.set_jobs(ONE, [])
    assert woken == []
