"""What is read again: EncoderModels whose events were missed, and prep Jobs that are gone without an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from encoder_operator.client.errors import Unavailable
from encoder_operator.controller.namespaces import Namespaces
from encoder_operator.controller.prep_slots import UNFINISHED_PREP_JOBS, PrepSlots
from encoder_operator.controller.resync import recount, resync
from encoder_operator.controller.watch_progress import WATCHED_KINDS, WatchProgress
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS

KEY = NamespacedName("demo", "minilm")
GONE, RUNS, PENDS = (NamespacedName("demo", name) for name in ("gone", "runs", "pends"))
LOST = NamespacedName("lost", "minilm")


def read_at(version: str) -> dict[str, str]:
    return dict.fromkeys(WATCHED_KINDS, version)


class Lists:
    """Answers with these lists of EncoderModels, one after another."""

    def __init__(self, *answers: Exception | list[dict[str, str]]) -> None:
        self._answers = list(answers)

    async def list_metadata(self, kind: str, namespace: str) -> list[dict[str, str]]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("error", [Unavailable("away"), KeyError("items")])
async def test_a_resync_that_fails_is_tried_again_whatever_was_wrong(error: Exception) -> None:
    cluster: Any = Lists(error, [{"name": "minilm", "namespace": "demo", "resourceVersion": "1"}])
    looked = asyncio.Event()

    async def look(key: NamespacedName) -> None:
        assert key == KEY
        looked.set()

    queue = WorkQueue(look, concurrency=1)
    task = asyncio.create_task(
        resync(cluster, queue, WatchProgress(), period=0.01, namespaces=Namespaces(cluster, SETTINGS))
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
    task = asyncio.create_task(resync(cluster, queue, found, period=0.01, namespaces=Namespaces(cluster, SETTINGS)))
    async with asyncio.timeout(5):
        await looked.wait()
    task.cancel()
    await queue.close()


class Periods:
    """Ends a resync after a number of periods, without waiting for them."""

    def __init__(self, number: int) -> None:
        self._left = number

    async def __call__(self, seconds: float) -> None:
        assert seconds == 60
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1


class Delays(WorkQueue):
    """Records what is enqueued, and after how many seconds."""

    def __init__(self) -> None:
        self.found: list[tuple[NamespacedName, float]] = []

    def enqueue(self, key: NamespacedName, after: float = 0.0) -> None:
        self.found.append((key, after))


class OneNamespace:
    """Reads the namespace demo; another one cannot be read."""

    unreadable = frozenset({"lost"})

    def serves(self, name: str) -> bool:
        return name != "other"

    async def read(self, read: Any) -> list[Any]:
        return [await read("demo")]


async def resynced(monkeypatch: pytest.MonkeyPatch, cluster: Any, progress: WatchProgress, periods: int = 1) -> Any:
    """Return what is enqueued in a number of periods, and after how many seconds."""
    queue, namespaces = Delays(), OneNamespace()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", Periods(periods))
        with pytest.raises(asyncio.CancelledError):
            await resync(cluster, queue, progress, period=60, namespaces=namespaces)  # type: ignore[arg-type]
    return queue.found


async def test_a_resync_spreads_batches_over_half_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m{number:02}" for number in range(40)]
    others = [{"name": "not-served", "namespace": "other"}]
    cluster = Lists([*others, *({"name": name, "namespace": "demo"} for name in names)])
    enqueued = await resynced(monkeypatch, cluster, WatchProgress())
    assert [key.name for key, _ in enqueued] == names
    # three batches of at most 16, which a queue reads together
    assert [after for _, after in enqueued] == [0.0] * 16 + [10.0] * 16 + [20.0] * 8


async def test_a_resync_takes_models_of_a_namespace_that_it_cannot_read_for_existing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, gone = WatchProgress(), NamespacedName("demo", "gone")
    for key in (gone, NamespacedName("lost", "minilm")):
        progress.record_read(key, read_at("7"))
    enqueued = await resynced(monkeypatch, Lists([]), progress)
    assert enqueued == [(gone, 0.0)]


class Jobs:
    """Lists these prep Jobs; each time, something happens before the list arrives."""

    def __init__(self, *lists: Exception | list[Json], meanwhile: Callable[[], None] = lambda: None) -> None:
        self._lists, self._meanwhile = list(lists), meanwhile

    async def list(self, kind: str, namespace: str, *selectors: Any) -> list[Json]:
        assert (kind, namespace, selectors) == ("Job", "demo", UNFINISHED_PREP_JOBS)
        found = self._lists.pop(0)
        self._meanwhile()
        if isinstance(found, Exception):
            raise found
        return found


def job(model: str, namespace: str = "demo") -> Json:
    return {"metadata": {"name": f"{model}-prep", "namespace": namespace, "labels": {"encoders.dev/model": model}}}


async def recounted(monkeypatch: pytest.MonkeyPatch, cluster: Any, slots: PrepSlots, periods: int = 1) -> None:
    namespaces: Any = OneNamespace()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", Periods(periods))
        with pytest.raises(asyncio.CancelledError):
            await recount(cluster, slots, period=60, namespaces=namespaces)


async def test_a_job_whose_deletion_was_missed_holds_its_slot_until_the_next_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = PrepSlots(9)
    # as a start lists them, before the watch begins
    slots.reset([job("gone"), job("runs"), job("minilm", "lost")])
    slots.set_jobs(PENDS, [], pending=["pends-prep"])
    await recounted(monkeypatch, Jobs([job("runs"), job("other", "other")]), slots)
    assert [slots.has_job(key) for key in (GONE, RUNS, PENDS, LOST)] == [False, True, False, True]
    assert not slots.has_job(NamespacedName("other", "other"))


async def test_a_job_that_is_created_while_jobs_are_listed_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = PrepSlots(9)
    slots.reset([job("gone"), job("pends")])

    def meanwhile() -> None:
        slots.set_jobs(RUNS, ["started"])
        slots.set_jobs(GONE, [])

    listed = [job("gone"), job("pends")]
    await recounted(monkeypatch, Jobs(listed, meanwhile=meanwhile), slots)
    assert [slots.has_job(key) for key in (GONE, RUNS, PENDS)] == [False, True, True]
    # the next list has it, or it is gone
    await recounted(monkeypatch, Jobs([job("gone")]), slots)
    assert [slots.has_job(key) for key in (GONE, RUNS, PENDS)] == [True, False, False]


async def test_without_a_known_job_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    await recounted(monkeypatch, None, PrepSlots(1), periods=3)


@pytest.mark.parametrize(
    ("error", "level", "resync_says", "count_says"),
    [
        (Unavailable("away"), "warning", "resync failed", "count of prep Jobs failed"),
        (KeyError("items"), "error", "unexpected error during resync", "unexpected error during count of prep Jobs"),
    ],
    ids=["unavailable", "malformed"],
)
async def test_what_fails_is_logged_changes_nothing_and_is_repeated(
    error: Exception, level: str, resync_says: str, count_says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = PrepSlots(1)
    slots.set_jobs(GONE, ["gone-prep"])
    with capture_logs() as logs:
        assert await resynced(monkeypatch, Lists(error, []), WatchProgress(), periods=2) == []
        await recounted(monkeypatch, Jobs(error), slots)
        assert slots.has_job(GONE)
        await recounted(monkeypatch, Jobs(error, []), slots, periods=2)
        assert not slots.has_job(GONE)
    assert [entry["event"] for entry in logs] == [resync_says, count_says, count_says]
    assert {entry["log_level"] for entry in logs} == {level}
