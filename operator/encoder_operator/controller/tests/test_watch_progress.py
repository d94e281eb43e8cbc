from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from encoder_operator.client.errors import Unavailable
from encoder_operator.controller.namespaces import Namespaces
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.watch_progress import WATCHED_KINDS, WatchProgress, resync
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.manager import health
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.harness import SETTINGS

KEY = NamespacedName("demo", "minilm")


def read_at(version: str) -> dict[str, str]:
    return dict.fromkeys(WATCHED_KINDS, version)


def test_an_event_that_was_already_read_needs_no_reconcile() -> None:
    found = WatchProgress()
    assert found.record_event(KEY, "Pod", "5")
    found.record_read(KEY, read_at("7"))
    assert not found.record_event(KEY, "Pod", "7")
    assert found.record_event(KEY, "Pod", "8")
    assert found.record_event(NamespacedName("demo", "other"), "Pod", "6")


def test_the_event_of_an_own_write_needs_no_reconcile_and_a_later_change_does() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.record_write(KEY, "EncoderModel", "9")
    assert not found.record_event(KEY, "EncoderModel", "9")
    assert found.record_event(KEY, "Pod", "9")
    assert found.record_event(KEY, "EncoderModel", "10")


def test_after_a_failed_reconcile_every_event_needs_a_reconcile() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.forget(KEY)
    assert found.record_event(KEY, "Pod", "3")


def test_a_model_that_is_created_while_the_deletion_of_its_predecessor_is_read_stays_unread() -> None:
    found = WatchProgress()
    found.record_event(KEY, "EncoderModel", "8")
    before = found.unread_events(KEY)
    found.record_event(KEY, "EncoderModel", "9")
    found.forget_deleted(KEY, before)
    assert found.has_unread_events(KEY)
    found.forget_deleted(KEY, found.unread_events(KEY))
    assert not found.has_unread_events(KEY)


async def test_the_probes_of_an_operator_that_starts_and_of_one_that_is_ready() -> None:
    ready = False
    async with health.serve_health(0, lambda: ready) as port, aiohttp.ClientSession() as client:

        async def status(path: str) -> int:
            async with client.get(f"http://127.0.0.1:{port}/{path}") as answer:
                await answer.read()
                return answer.status

        assert (await status("healthz"), await status("readyz"), await status("metrics")) == (200, 503, 200)
        ready = True
        assert await status("readyz") == 200


def test_events_during_a_reconcile_count_only_if_it_has_not_read_them() -> None:
    found = WatchProgress()
    found.record_event(KEY, "Pod", "5")
    assert found.has_unread_events(KEY)
    found.record_read(KEY, read_at("5"))
    assert not found.has_unread_events(KEY)
    found.record_event(KEY, "Job", "6")
    found.record_event(KEY, "Pod", "9")
    found.record_read(KEY, read_at("7"))
    assert found.has_unread_events(KEY)
    found.record_read(KEY, read_at("9"))
    assert not found.has_unread_events(KEY)


class Lists:
    """Answers with these lists of EncoderModels, one after another, and has no Jobs."""

    def __init__(self, *answers: Exception | list[dict[str, str]]) -> None:
        self._answers = list(answers)

    async def list_metadata(self, kind: str, namespace: str) -> list[dict[str, str]]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def list(self, *_: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("error", [Unavailable("away"), KeyError("items")])
async def test_a_resync_that_fails_is_tried_again_whatever_was_wrong(error: Exception) -> None:
    cluster: Any = Lists(error, [{"name": "minilm", "namespace": "demo", "resourceVersion": "1"}])
    looked = asyncio.Event()

    async def look(key: NamespacedName) -> None:
        assert key == KEY
        looked.set()

    queue = WorkQueue(look, concurrency=1)
    task = asyncio.create_task(
        resync(cluster, queue, WatchProgress(), PrepSlots(1), period=0.01, namespaces=Namespaces(cluster, SETTINGS))
    )
    async with asyncio.timeout(5):
        await looked.wait()
    task.cancel()
    await queue.close()


async def test_a_resync_enqueues_a_deleted_model_whose_event_was_missed() -> None:
    found, looked = WatchProgress(), asyncio.Event()
    found.record_read(KEY, read_at("7"))

    async def look(key: NamespacedName) -> None:
        assert key == KEY
        looked.set()

    queue = WorkQueue(look, concurrency=1)
    cluster: Any = Lists([])
    task = asyncio.create_task(
        resync(cluster, queue, found, PrepSlots(1), period=0.01, namespaces=Namespaces(cluster, SETTINGS))
    )
    async with asyncio.timeout(5):
        await looked.wait()
    task.cancel()
    await queue.close()
