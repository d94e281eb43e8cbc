from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from encoder_operator.client.client import Client
from encoder_operator.client.errors import Unavailable
from encoder_operator.controller.namespaces import Namespaces
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import WATCHED_KINDS, WatchProgress, resync
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.manager import health
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS, Harness

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


async def test_the_event_of_a_status_that_a_reconcile_wrote_needs_no_reconcile() -> None:
    harness, found = Harness(), WatchProgress()
    client = Client(config=FakeCluster.config(), transport=harness.fake)
    await Reconciler(client, SETTINGS, watch_progress=found).reconcile(*KEY)
    assert harness.fake.writes[-1] == "PATCH encodermodels/status minilm"
    assert not found.record_event(KEY, "EncoderModel", harness.live["metadata"]["resourceVersion"])


def test_the_event_of_an_own_write_needs_no_reconcile_and_a_later_change_does() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.record_write(KEY, "EncoderModel", "9")
    assert not found.record_event(KEY, "EncoderModel", "9")
    assert found.record_event(KEY, "Pod", "9")
    assert found.record_event(KEY, "EncoderModel", "10")


@pytest.mark.parametrize("written", WATCHED_KINDS)
def test_a_write_of_one_kind_says_nothing_about_the_others(written: str) -> None:
    found = WatchProgress()
    versions = {kind: 10 * number for number, kind in enumerate(WATCHED_KINDS, start=1)}
    found.record_read(KEY, {kind: str(version) for kind, version in versions.items()})
    found.record_write(KEY, written, str(versions[written] + 5))
    versions[written] += 5
    for kind, version in versions.items():
        assert not found.record_event(KEY, kind, str(version))
        assert found.record_event(KEY, kind, str(version + 1))


def test_a_write_without_a_read_or_a_version_hides_no_event() -> None:
    found = WatchProgress()
    # the model was forgotten while the write was sent
    found.record_write(KEY, "Pod", "9")
    assert found.record_event(KEY, "Pod", "9")
    found.record_read(KEY, read_at("9"))
    found.record_write(KEY, "Pod", "unknown")
    assert not found.record_event(KEY, "Pod", "9")
    assert found.record_event(KEY, "Pod", "10")


def test_an_event_with_an_invalid_version_is_read_by_the_next_reconcile() -> None:
    found = WatchProgress()
    assert found.record_event(KEY, "Pod", "unknown")
    assert found.has_unread_events(KEY)
    found.record_read(KEY, {})
    # it would be reconciled without end
    assert not found.has_unread_events(KEY)


def test_after_a_failed_reconcile_every_event_needs_a_reconcile() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.record_event(KEY, "Pod", "8")
    found.forget(KEY)
    # the retry of the failed reconcile follows anyway
    assert not found.has_unread_events(KEY)
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


def test_a_model_that_a_read_did_not_find_is_none_of_those_that_a_resync_looks_for() -> None:
    found = WatchProgress()
    found.record_read(KEY, {"EncoderModel": "8", "Pod": "9"})
    assert found.models == {KEY}
    found.forget_deleted(KEY, found.unread_events(KEY))
    assert found.models == frozenset()
    # a model of the same name is a new one, whose events count
    assert found.record_event(KEY, "Pod", "9")


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


def test_unread_events_of_a_forgotten_namespace_are_forgotten() -> None:
    progress = WatchProgress()
    for namespace in ("demo", "other"):
        for name in ("read", "new"):
            progress.record_event(NamespacedName(namespace, name), "Pod", "7")
        progress.record_read(NamespacedName(namespace, "read"), {"Pod": "5"})
    progress.forget_namespace("demo")
    assert progress.models == {NamespacedName("other", "read")}
    found = {key for name in ("read", "new") for key in (NamespacedName("demo", name), NamespacedName("other", name))}
    assert {key for key in found if progress.has_unread_events(key)} == {
        key for key in found if key.namespace == "other"
    }


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


class Slots(PrepSlots):
    """Records with which Jobs the slots are counted anew."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Any], Any]] = []

    def reset(self, jobs: Any, unreadable: Any = frozenset()) -> None:
        self.found.append((list(jobs), unreadable))


class OneNamespace:
    """Reads the namespace demo; another one cannot be read."""

    unreadable = frozenset({"lost"})

    def serves(self, name: str) -> bool:
        return name != "other"

    async def read(self, read: Any) -> list[Any]:
        return [await read("demo")]


class WithJobs(Lists):
    """Has an unfinished prep Job."""

    async def list(self, *_: Any) -> list[Any]:
        return [{"metadata": {"name": "prep", "namespace": namespace}} for namespace in ("demo", "other")]


async def resynced(monkeypatch: pytest.MonkeyPatch, cluster: Any, progress: WatchProgress, periods: int = 1) -> Any:
    """Return what is enqueued in a number of periods, and what the slots were given."""
    queue, slots, namespaces = Delays(), Slots(), OneNamespace()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", Periods(periods))
        with pytest.raises(asyncio.CancelledError):
            await resync(cluster, queue, progress, slots, period=60, namespaces=namespaces)  # type: ignore[arg-type]
    return queue.found, slots.found


async def test_a_resync_spreads_batches_over_half_a_period_and_counts_the_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"m{number:02}" for number in range(40)]
    others = [{"name": "not-served", "namespace": "other"}]
    cluster = WithJobs([*others, *({"name": name, "namespace": "demo"} for name in names)])
    enqueued, slots = await resynced(monkeypatch, cluster, WatchProgress())
    assert [key.name for key, _ in enqueued] == names
    # three batches of at most 16, which a queue reads together
    assert [after for _, after in enqueued] == [0.0] * 16 + [10.0] * 16 + [20.0] * 8
    assert slots == [([{"metadata": {"name": "prep", "namespace": "demo"}}], frozenset({"lost"}))]


async def test_a_resync_takes_models_of_a_namespace_that_it_cannot_read_for_existing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, gone = WatchProgress(), NamespacedName("demo", "gone")
    for key in (gone, NamespacedName("lost", "minilm")):
        progress.record_read(key, read_at("7"))
    enqueued, _ = await resynced(monkeypatch, Lists([]), progress)
    assert enqueued == [(gone, 0.0)]


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [
        (Unavailable("away"), "resync failed", "warning"),
        (KeyError("items"), "unexpected error during resync", "error"),
    ],
    ids=["unavailable", "malformed"],
)
async def test_a_resync_that_fails_is_logged(
    error: Exception, event: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs:
        enqueued, slots = await resynced(monkeypatch, Lists(error, []), WatchProgress(), periods=2)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [(event, level)]
    # the failed one changes nothing
    assert (enqueued, len(slots)) == ([], 1)
