from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable

import pytest

from encoder_operator.client.errors import RequestRejected, Unavailable
from encoder_operator.controller import workqueue
from encoder_operator.controller.token_bucket import TokenBucket
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName

ONE, TWO = NamespacedName("demo", "one"), NamespacedName("demo", "two")


class Looks:
    """Records looks, and lets a test hold them or make them fail."""

    def __init__(self) -> None:
        self.keys: list[NamespacedName] = []
        self.running = 0
        self.most = 0
        self.hold: asyncio.Event | None = None
        self.errors: list[Exception] = []
        self.after: float | None = None
        self._done = asyncio.Condition()

    async def __call__(self, key: NamespacedName) -> float | None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.keys.append(key)
        try:
            if self.hold is not None:
                await self.hold.wait()
            if self.errors:
                raise self.errors.pop(0)
            return self.after
        finally:
            self.running -= 1
            async with self._done:
                self._done.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with self._done:
                await self._done.wait_for(reached)

        await asyncio.wait_for(wait(), 5)


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
async def queue(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkQueue]:
    monkeypatch.setattr(workqueue, "_INITIAL_BACKOFF", 0.01)
    found = WorkQueue(looks, concurrency=4)
    yield found
    await found.close()


async def turn(times: int = 20) -> None:
    """Let everything that is due run."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_burst_of_events_is_one_reconcile(queue: WorkQueue, looks: Looks) -> None:
    for _ in range(50):
        queue.enqueue(ONE)
    await looks.until(lambda: looks.running == 0 and len(looks.keys) == 1)
    assert looks.keys == [ONE]


async def test_an_event_during_a_reconcile_leads_to_another_one(queue: WorkQueue, looks: Looks) -> None:
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=0)
    while not looks.keys:
        await turn()
    for _ in range(5):
        queue.enqueue(ONE)
    looks.hold.set()
    await looks.until(lambda: len(looks.keys) == 2 and looks.running == 0)
    assert looks.most == 1


async def test_keys_are_reconciled_concurrently_up_to_the_limit(queue: WorkQueue, looks: Looks) -> None:
    looks.hold = asyncio.Event()
    for i in range(10):
        queue.enqueue(NamespacedName("demo", str(i)), after=0)
    while looks.running < 4:
        await turn()
    looks.hold.set()
    await looks.until(lambda: len(looks.keys) == 10 and looks.running == 0)
    assert looks.most == 4


@pytest.mark.fault(
    "another client undoes every write of the operator",
    "the alert `EncoderOperatorConflictingWriter`",
    "the model is reconciled every 2 seconds; other models are not delayed",
)
async def test_a_model_that_never_stops_changing_is_throttled_and_no_other(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_BURST", 3)
    monkeypatch.setattr(workqueue, "_TOKEN_SECONDS", 3600)
    # a change arrives during each reconcile
    looks.after = 0
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: looks.keys == [ONE] * 3 and looks.running == 0)
    looks.after = None
    for _ in range(10):
        queue.enqueue(ONE, after=0)
        await turn()
    queue.enqueue(TWO, after=0)
    await looks.until(lambda: looks.keys[3:] == [TWO])


async def test_a_throttled_model_is_reconciled_when_it_has_a_token_again(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_BURST", 1)
    monkeypatch.setattr(workqueue, "_TOKEN_SECONDS", 0.1)
    for count in (1, 2, 3):
        queue.enqueue(ONE, after=0)
        await looks.until(lambda count=count: len(looks.keys) == count and looks.running == 0)  # type: ignore[misc]


def test_a_bucket_allows_a_burst_and_then_one_token_per_period() -> None:
    bucket = TokenBucket(3, 2.0)
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, 2.0]
    assert bucket.take(101.5) == 0.5
    assert [bucket.take(102.0), bucket.take(102.0)] == [0, 2.0]
    # it holds no more than a burst, however long it was not used
    assert [bucket.take(1e6) for _ in range(4)] == [0, 0, 0, 2.0]


async def test_a_failure_is_tried_again_and_later_each_time(queue: WorkQueue, looks: Looks) -> None:
    looks.errors = [Unavailable("down"), RequestRejected("no"), ZeroDivisionError()]
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) == 4 and looks.running == 0)
    delays = [workqueue._backoff(failures, None) for failures in range(1, 20)]
    assert delays[0] <= 0.01
    assert workqueue._MAX_BACKOFF / 2 <= delays[-1] <= workqueue._MAX_BACKOFF


async def test_one_keys_failure_does_not_hold_up_another(queue: WorkQueue, looks: Looks) -> None:
    looks.errors = [RuntimeError("bug")]
    queue.enqueue(ONE, after=0)
    queue.enqueue(TWO, after=0)
    await looks.until(lambda: TWO in looks.keys and looks.keys.count(ONE) == 2)


def test_the_api_servers_own_delay_is_respected() -> None:
    assert workqueue._backoff(1, Unavailable("slow down", retry_after=60)) == 60


async def test_a_reconcile_can_requeue_itself(queue: WorkQueue, looks: Looks) -> None:
    looks.after = 0.01
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) >= 3)


async def test_the_earlier_due_time_wins(queue: WorkQueue, looks: Looks) -> None:
    queue.enqueue(ONE, after=3600)
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: looks.keys == [ONE])


async def test_nothing_starts_after_the_end(looks: Looks) -> None:
    queue = WorkQueue(looks, concurrency=1)
    queue.enqueue(ONE, after=0)
    await queue.close()
    queue.enqueue(TWO, after=0)
    await turn()
    assert looks.keys == []


async def test_a_reconcile_does_not_inherit_the_context_of_its_event() -> None:
    event = contextvars.ContextVar("event", default="none")
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def look(key: NamespacedName) -> None:
        seen.set_result(event.get())

    found = WorkQueue(look, concurrency=1)
    event.set("an event, with all of its object")
    found.enqueue(ONE, after=0)
    assert await asyncio.wait_for(seen, 5) == "none"
    await found.close()
