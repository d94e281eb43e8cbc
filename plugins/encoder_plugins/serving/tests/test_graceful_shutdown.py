"""Stopping: not before the requests in flight are answered, and not never."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from encoder_plugins.serving.graceful_shutdown import LONGEST_SECONDS, Drain


@pytest.fixture
async def interrupted() -> AsyncIterator[asyncio.Event]:
    """Set when this process gets SIGINT."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, event.set)
    yield event
    loop.remove_signal_handler(signal.SIGINT)
    loop.remove_signal_handler(signal.SIGTERM)


async def test_a_stop_waits_for_what_is_in_flight(interrupted: asyncio.Event) -> None:
    drain = Drain(longest=60, quiet=0.05)
    drain.take_over()
    with drain.counting():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), 0.3)
        assert drain.stopping
    await asyncio.wait_for(interrupted.wait(), 10)


async def test_a_stop_does_not_wait_for_ever(interrupted: asyncio.Event) -> None:
    drain = Drain(longest=0.1, quiet=0.05)
    drain.take_over()
    with drain.counting():
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(interrupted.wait(), 10)


async def test_a_second_signal_changes_nothing(interrupted: asyncio.Event) -> None:
    drain = Drain(longest=60, quiet=0.2)
    drain.take_over()
    for _ in range(3):
        signal.raise_signal(signal.SIGTERM)
        # each would be passed on at a time of its own
        await asyncio.sleep(0.1)
    await asyncio.wait_for(interrupted.wait(), 10)
    interrupted.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(interrupted.wait(), 1)


def test_a_stop_fits_into_the_time_that_a_pod_has() -> None:
    # the operator gives a pod 90 s, of which 5 pass before SIGTERM; vLLM needs 10 to end
    assert 30 <= LONGEST_SECONDS <= 75


async def test_a_server_without_requests_is_quiet_at_once() -> None:
    await asyncio.wait_for(Drain().quiet(), 30)


async def test_what_comes_during_the_quiet_starts_it_anew() -> None:
    drain = Drain(quiet=0.2)
    waiting = asyncio.create_task(drain.quiet())
    for _ in range(5):
        with drain.counting():
            pass
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    await asyncio.wait_for(waiting, 10)
