"""Stopping: not before the requests in flight are answered, and not never."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from encoder_plugins.serving.graceful_shutdown import LONGEST_SECONDS, Drain


class Server:
    """What a stop ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.calls: list[bool] = []

    def end(self, at_once: bool) -> None:
        self.calls.append(at_once)
        self.ended.set()

    async def wait(self, seconds: float = 10) -> None:
        await asyncio.wait_for(self.ended.wait(), seconds)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    yield Server()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_waits_for_what_is_in_flight(server: Server, number: signal.Signals) -> None:
    drain = Drain(longest=60, quiet=0.05)
    drain.take_over(server.end)
    with drain.counting():
        signal.raise_signal(number)
        with pytest.raises(TimeoutError):
            await server.wait(0.3)
        assert drain.stopping
    await server.wait()
    assert server.calls == [False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_does_not_wait_for_ever(server: Server, number: signal.Signals) -> None:
    drain = Drain(longest=0.1, quiet=0.05)
    drain.take_over(server.end)
    with drain.counting():
        signal.raise_signal(number)
        await server.wait()
    assert server.calls == [False]


async def test_a_second_sigterm_changes_nothing(server: Server) -> None:
    drain = Drain(longest=60, quiet=0.2)
    drain.take_over(server.end)
    # vLLM sends SIGTERM to its API servers when Ctrl-C has ended their parent, and Ctrl-C reaches them, too
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(number)
        # each would end the server at a time of its own
        await asyncio.sleep(0.1)
    await server.wait()
    server.ended.clear()
    with pytest.raises(TimeoutError):
        await server.wait(1)
    assert server.calls == [False]


async def test_a_second_interrupt_ends_at_once(server: Server) -> None:
    drain = Drain(longest=60, quiet=0.05)
    drain.take_over(server.end)
    with drain.counting():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        assert server.calls == []
        signal.raise_signal(signal.SIGINT)
        await server.wait()
    assert server.calls[0] is True


@pytest.mark.parametrize(("name", "ignored"), [("EngineCore", True), ("EngineCore_DP1", True), ("MainProcess", False)])
def test_an_engine_leaves_interrupts_to_its_server(name: str, ignored: bool) -> None:
    code = f"""
import multiprocessing, signal
from encoder_plugins.serving import graceful_shutdown
multiprocessing.current_process().name = {name!r}
graceful_shutdown.leave_interrupts_to_the_server()
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(ignored)


def test_a_stop_fits_into_the_time_that_a_pod_has() -> None:
    # the operator gives a pod 90 s, of which 5 pass before SIGTERM; vLLM needs 10 to end
    assert 30 <= LONGEST_SECONDS <= 75


async def test_a_server_without_requests_is_quiet_at_once() -> None:
    await asyncio.wait_for(Drain().quiet(), 30)


@pytest.mark.parametrize("begun", [True, False])
async def test_what_comes_during_the_quiet_starts_it_anew(begun: bool) -> None:
    drain = Drain(quiet=0.8)
    waiting = asyncio.create_task(drain.quiet())
    for _ in range(12):
        if begun:
            with drain.counting():
                pass
        else:
            drain.refused()
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    await asyncio.wait_for(waiting, 10)
