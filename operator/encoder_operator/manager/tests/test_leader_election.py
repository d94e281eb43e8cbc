from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from encoder_operator.client.errors import Conflict, RequestRejected, Unavailable
from encoder_operator.client.leadership import Leadership
from encoder_operator.manager import leader_election
from encoder_operator.manager.leader_election import LeaderElector
from encoder_operator.metrics import metrics
from encoder_operator.tests.fake_cluster import Json


class Leases:
    """One Lease as the API server keeps it, and faults."""

    def __init__(self) -> None:
        self.live: Json | None = None
        self.errors: list[Exception] = []
        self.puts = 0

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        return copy.deepcopy(self.live)

    async def put_lease(self, wanted: Json) -> Json:
        if self.errors:
            raise self.errors.pop(0)
        version = (self.live or {}).get("metadata", {}).get("resourceVersion")
        if wanted["metadata"].get("resourceVersion") != version:
            raise Conflict("conflict", status=409)
        self.puts += 1
        self.live = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": str(self.puts)}}
        return copy.deepcopy(self.live)

    @property
    def holder(self) -> str | None:
        found: str | None = (self.live or {}).get("spec", {}).get("holderIdentity")
        return found


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def one(leases: Leases, identity: str, clock: Clock) -> tuple[LeaderElector, Leadership]:
    leadership = Leadership(clock)
    return LeaderElector(leases, leadership, namespace="n", name="l", identity=identity, seconds=15), leadership


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that goes on during a sleep."""
    found = Clock()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.time += seconds
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


@contextlib.asynccontextmanager
async def waiting(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_writes_need_the_lease(clock: Clock) -> None:
    held, leadership = one(Leases(), "a", clock)
    assert leadership.remaining() == -math.inf
    await held.acquire()
    assert leadership.remaining() == 10


async def test_the_time_that_a_renewal_takes_is_not_time_to_write(clock: Clock) -> None:
    class Slow(Leases):
        async def put_lease(self, wanted: Json) -> Json:
            answer = await super().put_lease(wanted)
            # others count from when the API server stored it, and that may be any of these seconds
            clock.time += 4
            return answer

    held, leadership = one(Slow(), "a", clock)
    await held.acquire()
    assert leadership.remaining() == 10 - 4


async def test_the_metric_says_who_leads(clock: Clock) -> None:
    held, _ = one(Leases(), "a", clock)
    await held.acquire()
    assert metrics.REGISTRY.get_sample_value("encoder_leader") == 1
    await held.release()
    assert metrics.REGISTRY.get_sample_value("encoder_leader") == 0


class Overtaken(Leases):
    """The first write comes after that of another operator, which also found the Lease free."""

    async def put_lease(self, wanted: Json) -> Json:
        if not self.puts:
            await super().put_lease({**wanted, "spec": {**wanted["spec"], "holderIdentity": "a"}})
        return await super().put_lease(wanted)


async def test_who_is_slower_than_another_does_not_lead(clock: Clock) -> None:
    leases = Overtaken()
    second, theirs = one(leases, "b", clock)
    async with waiting(second.acquire()) as trying:
        await turns(5)
        assert (leases.holder, trying.done(), theirs.remaining()) == ("a", False, -math.inf)


async def test_who_has_never_held_the_lease_releases_nothing(clock: Clock) -> None:
    leases = Leases()
    await one(leases, "a", clock)[0].acquire()
    await one(leases, "b", clock)[0].release()
    assert (leases.holder, leases.puts) == ("a", 1)


async def test_a_request_that_hangs_leaves_time_for_another(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    real = asyncio.timeout

    def timeout(seconds: float) -> asyncio.Timeout:
        given.append(seconds)
        return real(60)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    leases = Leases()
    held, _ = one(leases, "a", clock)
    await held.acquire()
    async with waiting(held.renew_until_lost()):
        await turns(3)
    # two tries before writing must end, which is after 10 seconds
    assert given
    assert set(given) == {5}
    await held.release()
    # the process has 4.5 seconds to end
    assert given[-1] <= 2


async def test_the_second_waits_as_long_as_the_first_renews(clock: Clock) -> None:
    leases = Leases()
    first, _ = one(leases, "a", clock)
    second, theirs = one(leases, "b", clock)
    await first.acquire()
    async with waiting(first.renew_until_lost()), waiting(second.acquire()) as trying:
        await turns(200)
        assert leases.puts > 5
        assert not trying.done()
    assert theirs.remaining() == -math.inf


async def test_a_silent_holder_loses_it_after_its_duration_and_has_stopped_writing_before(clock: Clock) -> None:
    leases = Leases()
    first, ours = one(leases, "a", clock)
    second, theirs = one(leases, "b", clock)
    await first.acquire()
    began = clock.time
    await second.acquire()
    assert clock.time - began == 15
    assert leases.holder == "b"
    assert theirs.remaining() > 0 >= ours.remaining()
    await first.renew_until_lost()
    assert leases.holder == "b"


async def test_clocks_of_machines_do_not_matter(clock: Clock) -> None:
    leases = Leases()
    first, _ = one(leases, "a", clock)
    await first.acquire()
    assert leases.live is not None
    leases.live["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    second, _ = one(leases, "b", clock)
    async with waiting(second.acquire()) as trying:
        for _ in range(10):
            await turns(1)
            assert leases.holder == "a"
        assert not trying.done()


async def test_a_released_lease_is_free_at_once(clock: Clock) -> None:
    leases = Leases()
    first, ours = one(leases, "a", clock)
    await first.acquire()
    await first.release()
    assert leases.holder is None
    assert ours.remaining() == -math.inf
    began = clock.time
    await one(leases, "b", clock)[0].acquire()
    assert clock.time == began


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("down"),
        Conflict("changed", status=409),
        RequestRejected("forbidden", status=403),
        TimeoutError("no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_release_that_fails_is_reported_and_the_lease_is_free_after_its_duration(
    error: Exception, clock: Clock
) -> None:
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    leases.errors = [error]
    with capture_logs() as logs:
        # an operator that ends must not end with an exception
        await held.release()
    assert logs == [{"event": "cannot release the lease", "error": str(error), "log_level": "warning"}]
    assert (leases.holder, leadership.remaining()) == ("a", -math.inf)
    assert metrics.REGISTRY.get_sample_value("encoder_leader") == 0
    # it is not tried again with a version that may be another holder's
    await held.release()
    assert leases.puts == 1
    began = clock.time
    await one(leases, "b", clock)[0].acquire()
    assert (leases.holder, clock.time - began) == ("b", 15)


async def test_a_release_that_hangs_is_given_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Leases):
        hangs = False

        async def put_lease(self, wanted: Json) -> Json:
            if self.hangs:
                await asyncio.Event().wait()
            return await super().put_lease(wanted)

    real = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: real(0))
    leases = Hanging()
    held, _ = one(leases, "a", clock)
    await held.acquire()
    leases.hangs = True
    with capture_logs() as logs:
        await held.release()
    assert [entry["event"] for entry in logs] == ["cannot release the lease"]
    assert leases.holder == "a"


async def test_a_released_lease_keeps_its_other_fields(clock: Clock) -> None:
    leases = Leases()
    held, _ = one(leases, "a", clock)
    await held.acquire()
    before = copy.deepcopy(leases.live or {})
    await held.release()
    del before["spec"]["holderIdentity"]
    assert (leases.live or {})["spec"] == before["spec"]
    assert before["spec"]["leaseDurationSeconds"] == 15


async def test_a_holder_is_logged_once_and_an_operator_that_acquires_or_loses_says_so(clock: Clock) -> None:
    leases = Leases()
    with capture_logs() as logs:
        await one(leases, "a", clock)[0].acquire()
        second, _ = one(leases, "b", clock)
        # "a" does not renew; "b" tries fifteen times before it may take over
        await second.acquire()
        leases.errors = [Unavailable("down")] * 1000
        await second.renew_until_lost()
    found = [(entry["event"], entry.get("holder") or entry.get("identity")) for entry in logs if "error" not in entry]
    assert found == [
        ("acquired the lease", "a"),
        ("standing by", "a"),
        ("acquired the lease", "b"),
        ("lost the lease", "b"),
    ]


async def test_an_operator_that_cannot_read_the_lease_tries_again(clock: Clock) -> None:
    class Away(Leases):
        failures = 3

        async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
            if self.failures:
                self.failures -= 1
                raise Unavailable("down")
            return await super().get(kind, namespace, name)

    leases = Away()
    began = clock.time
    with capture_logs() as logs:
        await one(leases, "a", clock)[0].acquire()
    assert [entry["event"] for entry in logs] == ["cannot acquire the lease"] * 3 + ["acquired the lease"]
    assert (leases.holder, clock.time - began) == ("a", 3)


async def test_a_renewal_that_is_forbidden_is_reported_and_costs_the_lease(clock: Clock) -> None:
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    # renewals begin after three seconds and are tried once a second; the next one would succeed, at the moment at which writes end
    leases.errors = [RequestRejected("forbidden", status=403) for _ in range(7)]
    began = clock.time
    with capture_logs() as logs:
        async with waiting(held.renew_until_lost()) as keeping:
            await turns(60)
            assert keeping.done()
    assert [entry["event"] for entry in logs] == ["the lease cannot be renewed"] * 7 + ["lost the lease"]
    assert (leases.puts, leadership.remaining()) == (1, -math.inf)
    assert clock.time - began == 10


async def test_a_renewal_that_was_delayed_is_sent_while_writes_are_allowed(clock: Clock) -> None:
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    # after the three seconds until the renewal, half a second is left
    clock.time += 6.5
    async with waiting(held.renew_until_lost()) as keeping:
        await turns(20)
        assert not keeping.done()
    assert leases.puts > 1
    assert leadership.remaining() > 0


async def test_a_lease_that_was_deleted_is_lost_in_time(clock: Clock) -> None:
    """A renewal without a Lease conflicts: it would create one that another operator may create as well."""
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    leases.live = None
    began = clock.time
    await held.renew_until_lost()
    assert (clock.time - began, leases.puts, leadership.remaining()) == (10, 1, -math.inf)


async def test_an_api_server_that_is_away_for_a_moment_costs_nothing_and_for_long_the_lease(clock: Clock) -> None:
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    leases.errors = [Unavailable("down")] * 3
    async with waiting(held.renew_until_lost()) as keeping:
        await turns(30)
        assert leadership.remaining() > 0
        leases.errors = [Unavailable("down")] * 1000
        await turns(30)
        assert keeping.done()
    assert leadership.remaining() == -math.inf
    assert metrics.REGISTRY.get_sample_value("encoder_leader") == 0


async def test_a_lease_is_reported_as_lost_when_writes_end(clock: Clock) -> None:
    held, leadership = one(Leases(), "a", clock)
    await held.acquire()
    began = clock.time
    clock.time += 9.5
    await held.renew_until_lost()
    assert (clock.time - began, leadership.remaining()) == (10, -math.inf)


async def test_a_conflict_whose_cause_cannot_be_read_is_no_loss(clock: Clock) -> None:
    class Away(Leases):
        away = False

        async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
            if self.away:
                self.away = False
                raise Unavailable("down")
            return await super().get(kind, namespace, name)

    leases = Away()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    leases.away = True
    leases.errors = [Conflict("conflict", status=409)]
    async with waiting(held.renew_until_lost()) as keeping:
        await turns(30)
        assert not keeping.done()
    assert leases.puts > 1
    assert leadership.remaining() > 0


async def test_failed_renewals_are_logged(clock: Clock) -> None:
    leases = Leases()
    held, _ = one(leases, "a", clock)
    await held.acquire()
    leases.errors = [Unavailable("down"), TimeoutError("slow")]
    with capture_logs() as logs:
        async with waiting(held.renew_until_lost()):
            await turns(30)
    found = [(entry["event"], entry["error"]) for entry in logs]
    assert found == [("lease renewal failed; retrying", error) for error in ("down", "slow")]


async def test_a_lease_edited_by_others_is_renewed(clock: Clock) -> None:
    leases = Leases()
    held, _ = one(leases, "a", clock)
    await held.acquire()
    assert leases.live is not None
    leases.live["metadata"]["resourceVersion"] = "100"
    leases.puts = 100
    async with waiting(held.renew_until_lost()) as keeping:
        await turns(10)
        assert not keeping.done()
    assert leases.puts > 100


async def test_a_lease_that_another_operator_has_taken_is_not_taken_back(clock: Clock) -> None:
    leases = Leases()
    held, leadership = one(leases, "a", clock)
    await held.acquire()
    assert leases.live is not None
    metadata = {**leases.live["metadata"], "resourceVersion": "100"}
    leases.live = {**leases.live, "metadata": metadata, "spec": {**leases.live["spec"], "holderIdentity": "b"}}
    leases.puts = 100
    began = clock.time
    async with waiting(held.renew_until_lost()) as keeping:
        await turns(10)
        assert keeping.done()
    # at the first renewal, long before it may not write any more
    assert clock.time - began <= 4
    assert (leases.holder, leases.puts) == ("b", 100)
    assert leadership.remaining() == -math.inf


async def test_the_same_pod_takes_its_lease_back_at_once(clock: Clock) -> None:
    leases = Leases()
    await one(leases, "pod-1", clock)[0].acquire()
    assert (leases.live or {})["spec"]["leaseTransitions"] == 1
    began = clock.time
    await one(leases, "pod-1", clock)[0].acquire()
    assert clock.time == began
    assert (leases.live or {})["spec"]["leaseTransitions"] == 1
    await one(leases, "pod-2", clock)[0].acquire()
    assert (leases.live or {})["spec"]["leaseTransitions"] == 2


def test_the_clock_of_the_lease_counts_the_time_that_a_machine_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 100.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    leadership = Leadership()
    leadership.grant(leadership.now() + 10)
    # a virtual machine that is suspended for an hour runs on for a second
    clocks[time.CLOCK_BOOTTIME] += 3600
    clocks[time.CLOCK_MONOTONIC] += 1
    assert leadership.remaining() == 10 - 3600


def test_operators_on_one_host_have_different_identities_and_a_pod_has_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def identity_of_process(number: int) -> str:
        monkeypatch.setattr(os, "getpid", lambda: number)
        return leader_election.identity()

    monkeypatch.setattr(socket, "gethostname", lambda: "host")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert identity_of_process(1) != identity_of_process(2)
    # a restarted container has the name of its pod, and may have another process id
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert identity_of_process(1) == identity_of_process(2) == "host"
