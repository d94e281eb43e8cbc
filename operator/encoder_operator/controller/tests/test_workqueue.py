from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from encoder_operator.client.errors import Conflict, NotLeader, RequestRejected, Unavailable
from encoder_operator.controller import workqueue
from encoder_operator.controller.token_bucket import TokenBucket
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.metrics import metrics
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
            # one that is cancelled takes a while to end, too
            await turn()
            self.running -= 1
            async with self._done:
                self._done.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with self._done:
                await self._done.wait_for(reached)

        await asyncio.wait_for(wait(), 30)


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


async def running(looks: Looks) -> None:
    """Wait until a reconcile runs."""
    while not looks.running:
        await turn()


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


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


async def test_a_rollout_is_not_throttled_and_a_fight_over_a_field_is(queue: WorkQueue, looks: Looks) -> None:
    looks.after = 0
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) >= 30)
    # without a limit there would be thousands in this time
    await asyncio.sleep(1)
    assert len(looks.keys) <= 100
    looks.after = None


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


async def test_a_failure_is_tried_again_whatever_it_is(queue: WorkQueue, looks: Looks) -> None:
    looks.errors = [Unavailable("down"), RequestRejected("no"), ZeroDivisionError()]
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) == 4 and looks.running == 0)


async def test_one_keys_failure_does_not_hold_up_another(queue: WorkQueue, looks: Looks) -> None:
    looks.errors = [RuntimeError("bug")]
    queue.enqueue(ONE, after=0)
    queue.enqueue(TWO, after=0)
    await looks.until(lambda: TWO in looks.keys and looks.keys.count(ONE) == 2)


async def test_a_reconcile_can_requeue_itself(queue: WorkQueue, looks: Looks) -> None:
    looks.after = 0.01
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) >= 3)


async def test_the_earlier_due_time_wins(queue: WorkQueue, looks: Looks) -> None:
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=3 * workqueue._DEBOUNCE_SECONDS)
    queue.enqueue(ONE, after=0.01)
    queue.enqueue(ONE, after=2 * workqueue._DEBOUNCE_SECONDS)
    queue.enqueue(ONE, after=3600)
    await asyncio.wait_for(running(looks), 30)
    # one that was replaced, or not taken, would be due while the reconcile runs, and lead to a second one
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    looks.hold.set()
    await looks.until(lambda: looks.keys == [ONE] and looks.running == 0)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE]
    # nothing is kept of a model that is not due
    assert (queue._entries, queue._tasks) == ({}, set())


async def test_an_event_does_not_wait_for_a_later_timer(queue: WorkQueue, looks: Looks) -> None:
    queue.enqueue(ONE, after=3600)
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: looks.keys == [ONE] and looks.running == 0)


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
    assert await asyncio.wait_for(seen, 30) == "none"
    await found.close()


async def test_a_model_that_waits_for_its_turn_is_counted_and_needs_no_second_reconcile(looks: Looks) -> None:
    queue, before = WorkQueue(looks, concurrency=1), sample("encoder_queue_depth")
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=0)
    await running(looks)
    assert sample("encoder_queue_depth") == before
    queue.enqueue(TWO, after=0)
    while sample("encoder_queue_depth") == before:
        await turn()
    assert looks.keys == [ONE]
    # it has not started, so that it will read this change
    queue.enqueue(TWO)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    looks.hold.set()
    await looks.until(lambda: len(looks.keys) == 2 and looks.running == 0)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE, TWO]
    assert sample("encoder_queue_depth") == before
    await queue.close()


async def test_a_timer_that_ends_during_a_reconcile_leads_to_another_one(queue: WorkQueue, looks: Looks) -> None:
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=0)
    await running(looks)
    queue.enqueue(ONE, after=2 * workqueue._DEBOUNCE_SECONDS)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE]
    looks.hold.set()
    await looks.until(lambda: looks.keys == [ONE, ONE] and looks.running == 0)


async def test_a_timer_that_ends_after_a_reconcile_leads_to_another_one(queue: WorkQueue, looks: Looks) -> None:
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=0)
    await running(looks)
    queue.enqueue(ONE, after=4 * workqueue._DEBOUNCE_SECONDS)
    looks.hold.set()
    await looks.until(lambda: looks.keys == [ONE] and looks.running == 0)
    await looks.until(lambda: looks.keys == [ONE, ONE] and looks.running == 0)


@pytest.mark.parametrize(("news", "expected"), [(False, 1), (True, 2)])
async def test_only_an_event_that_was_not_read_leads_to_another_reconcile(
    looks: Looks, news: bool, expected: int
) -> None:
    questions: list[NamespacedName] = []

    def has_news(key: NamespacedName) -> bool:
        questions.append(key)
        return news

    queue = WorkQueue(looks, concurrency=1, has_news=has_news)
    looks.hold = asyncio.Event()
    queue.enqueue(ONE, after=0)
    await running(looks)
    queue.enqueue(ONE)
    looks.hold.set()
    await looks.until(lambda: len(looks.keys) == expected and looks.running == 0)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE] * expected
    # without an event during the reconcile there is nothing to find out
    assert questions == [ONE]
    await queue.close()


async def test_the_end_gives_what_runs_its_grace_period_and_then_cancels_it(looks: Looks) -> None:
    patient, waiting = WorkQueue(looks, concurrency=1), sample("encoder_queue_depth")
    finished = sample("encoder_reconcile_total", result="ok")
    looks.hold = asyncio.Event()
    patient.enqueue(ONE, after=0)
    await running(looks)
    asyncio.get_running_loop().call_later(0.05, looks.hold.set)
    await asyncio.wait_for(patient.close(grace=60), 30)
    assert (looks.keys, looks.running) == ([ONE], 0)
    assert sample("encoder_reconcile_total", result="ok") == finished + 1
    cancelled = WorkQueue(looks, concurrency=1)
    looks.hold = asyncio.Event()
    cancelled.enqueue(ONE, after=0)
    cancelled.enqueue(TWO, after=0)
    await running(looks)
    while sample("encoder_queue_depth") == waiting:
        await turn()
    # without a grace period, what would finish soon is cancelled, too
    asyncio.get_running_loop().call_later(0.05, looks.hold.set)
    await asyncio.wait_for(cancelled.close(), 30)
    # one ran, and one waited for its turn
    assert looks.keys == [ONE, ONE]
    assert looks.running == 0
    assert sample("encoder_reconcile_total", result="ok") == finished + 1
    assert sample("encoder_queue_depth") == waiting


class ScriptedBucket:
    """A bucket whose answers a test chooses: the delay of each call, and the tokens after it."""

    def __init__(self, answers: list[tuple[float, float]]) -> None:
        self._answers = answers
        self.tokens = 0.0

    def take(self, now: float) -> float:
        """Return the next delay."""
        delay, self.tokens = self._answers.pop(0)
        return delay


async def test_a_delayed_model_is_logged_again_only_after_it_was_quiet(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed, allowed, quiet = (0.01, 0.0), (0.0, 1.0), (0.0, workqueue._BURST / 2)
    bucket = ScriptedBucket([delayed, delayed, allowed, delayed, quiet, delayed, allowed])
    monkeypatch.setattr(workqueue, "TokenBucket", lambda burst, period: bucket)
    before = sample("encoder_reconcile_throttled_total")
    warnings = []
    for count in (1, 2, 3):
        with capture_logs() as logs:
            queue.enqueue(ONE, after=0)
            await looks.until(lambda count=count: len(looks.keys) == count and looks.running == 0)  # type: ignore[misc]
        warnings.append([(entry["namespace"], entry["name"]) for entry in logs if entry["log_level"] == "warning"])
    assert warnings == [[("demo", "one")], [], [("demo", "one")]]
    # each reconcile that was delayed once, however often its timer started again
    assert sample("encoder_reconcile_throttled_total") == before + 3


async def test_the_limits_of_models_that_were_reconciled_long_ago_are_forgotten(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_BURST", 1)
    monkeypatch.setattr(workqueue, "_TOKEN_SECONDS", 3600)
    monkeypatch.setattr(workqueue, "_MAX_BUCKETS", 1)
    for number, key in enumerate((ONE, TWO, ONE), 1):
        queue.enqueue(key, after=0)
        await looks.until(lambda number=number: len(looks.keys) == number and looks.running == 0)  # type: ignore[misc]
    assert looks.keys == [ONE, TWO, ONE]


async def test_a_delay_is_logged_again_when_the_limit_was_forgotten(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "TokenBucket", lambda burst, period: ScriptedBucket([(0.01, 0.0), (0.0, 1.0)]))
    monkeypatch.setattr(workqueue, "_MAX_BUCKETS", 1)
    with capture_logs() as logs:
        for number, key in enumerate((ONE, TWO, ONE), 1):
            queue.enqueue(key, after=0)
            await looks.until(lambda number=number: len(looks.keys) == number and looks.running == 0)  # type: ignore[misc]
    assert [entry["name"] for entry in logs if entry["log_level"] == "warning"] == ["one", "two", "one"]


async def test_a_model_that_was_reconciled_lately_keeps_its_limit(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_BURST", 2)
    monkeypatch.setattr(workqueue, "_TOKEN_SECONDS", 3600)
    monkeypatch.setattr(workqueue, "_MAX_BUCKETS", 2)
    three = NamespacedName("demo", "three")
    for number, key in enumerate((ONE, TWO, ONE, three), 1):
        queue.enqueue(key, after=0)
        await looks.until(lambda number=number: len(looks.keys) == number and looks.running == 0)  # type: ignore[misc]
    queue.enqueue(ONE, after=0)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE, TWO, ONE, three]


async def test_a_throttled_model_waits_until_its_bucket_says(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = ScriptedBucket([(0.4, 0.0), (0.0, 1.0)])
    monkeypatch.setattr(workqueue, "TokenBucket", lambda burst, period: bucket)
    queue.enqueue(ONE, after=0)
    await turn()
    # this event needs no timer of its own: the model is due earlier
    queue.enqueue(ONE, after=30)
    await asyncio.sleep(0.2)
    assert looks.keys == []
    await looks.until(lambda: looks.keys == [ONE] and looks.running == 0)


async def test_failures_in_a_row_are_counted_from_the_last_success(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def backoff(failures: int, error: Exception | None) -> float:
        counts.append(failures)
        return 0.0

    monkeypatch.setattr(workqueue, "_backoff", backoff)
    looks.errors, looks.after = [RequestRejected("quota"), ZeroDivisionError()], 0.2
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) == 3 and looks.running == 0)
    looks.errors, looks.after = [RequestRejected("quota")], None
    await looks.until(lambda: len(looks.keys) == 5 and looks.running == 0)
    assert counts == [1, 2, 1]


async def test_each_result_is_counted(queue: WorkQueue, looks: Looks) -> None:
    results, finished = ("ok", "NotLeader", "Unavailable", "InternalError"), sample("encoder_reconcile_seconds_count")
    taken = sample("encoder_reconcile_seconds_sum")
    before = {result: sample("encoder_reconcile_total", result=result) for result in results}
    looks.errors = [Unavailable("down"), ZeroDivisionError()]
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: len(looks.keys) == 3 and looks.running == 0)
    looks.errors = [NotLeader("the Lease has another holder")]
    queue.enqueue(TWO, after=0)
    await looks.until(lambda: looks.keys[3:] == [TWO] and looks.running == 0)
    await queue.close(grace=30)
    assert {result: sample("encoder_reconcile_total", result=result) - before[result] for result in results} == {
        "ok": 1,
        "NotLeader": 1,
        "Unavailable": 1,
        "InternalError": 1,
    }
    assert sample("encoder_reconcile_seconds_count") == finished + 4
    assert 0 < sample("encoder_reconcile_seconds_sum") - taken < 30


async def test_a_replica_that_lost_the_lease_does_not_try_again(queue: WorkQueue, looks: Looks) -> None:
    looks.errors = [NotLeader("the Lease has another holder")]
    queue.enqueue(ONE, after=0)
    await looks.until(lambda: looks.keys == [ONE] and looks.running == 0)
    # many times the delay after a failure
    await asyncio.sleep(0.5)
    assert looks.keys == [ONE]


async def test_an_unexpected_error_is_logged_with_its_trace_and_delay(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_backoff", lambda *_: 0.14)
    looks.errors = [ZeroDivisionError("one")]
    with capture_logs() as logs:
        queue.enqueue(ONE, after=0)
        await looks.until(lambda: looks.keys == [ONE, ONE] and looks.running == 0)
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (entry["event"], entry["exc_info"]) == ("unexpected error during reconciliation", True)
    assert entry["retry_in"] == 0.1


async def test_an_event_does_not_shorten_the_delay_after_a_failure(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "_INITIAL_BACKOFF", 3600)
    looks.errors, looks.hold = [RequestRejected("quota")], asyncio.Event()
    queue.enqueue(ONE, after=0)
    await running(looks)
    queue.enqueue(ONE)
    looks.hold.set()
    await looks.until(lambda: not looks.running)
    await asyncio.sleep(4 * workqueue._DEBOUNCE_SECONDS)
    assert looks.keys == [ONE]


@pytest.mark.parametrize(
    ("errors", "levels"),
    [([Conflict("changed")] * 6, ["debug"] * 5 + ["warning"]), ([RequestRejected("quota")], ["warning"])],
)
async def test_a_failure_is_a_warning_unless_it_is_one_of_the_first_conflicts(
    queue: WorkQueue, looks: Looks, monkeypatch: pytest.MonkeyPatch, errors: list[Exception], levels: list[str]
) -> None:
    monkeypatch.setattr(workqueue, "_backoff", lambda *_: 0.06)
    looks.errors = [*errors]
    with capture_logs() as logs:
        queue.enqueue(ONE, after=0)
        await looks.until(lambda: looks.keys == [ONE] * (len(errors) + 1) and looks.running == 0)
    failed = [entry for entry in logs if entry["event"] == "reconcile failed"]
    assert [(entry["log_level"], entry["retry_in"]) for entry in failed] == [(level, 0.1) for level in levels]
