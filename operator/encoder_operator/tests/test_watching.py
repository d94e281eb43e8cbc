from __future__ import annotations

import asyncio

import aiohttp

from encoder_operator import probes
from encoder_operator.wakeups import Key
from encoder_operator.watching import Watchdog

KEY = Key("demo", "minilm")


async def compared(watchdog: Watchdog, listed: dict[Key, str], seen_meanwhile: str | None = None) -> tuple[Key, ...]:
    task = asyncio.create_task(watchdog.compare(listed))
    await asyncio.sleep(0)
    if seen_meanwhile:
        watchdog.seen(KEY, seen_meanwhile)
    await task
    return watchdog.behind


async def test_a_watch_that_has_brought_the_listed_version_is_in_time() -> None:
    watchdog = Watchdog(grace=0.001)
    watchdog.seen(KEY, "5")
    assert await compared(watchdog, {KEY: "5"}) == ()


async def test_a_watch_that_brings_something_meanwhile_is_in_time() -> None:
    watchdog = Watchdog(grace=0.001)
    watchdog.seen(KEY, "4")
    assert await compared(watchdog, {KEY: "5"}, seen_meanwhile="6") == ()


async def test_a_silent_watch_is_behind_until_it_is_not() -> None:
    watchdog = Watchdog(grace=0.001)
    watchdog.seen(KEY, "4")
    assert await compared(watchdog, {KEY: "5"}) == (KEY,)
    watchdog.seen(KEY, "5")
    assert await compared(watchdog, {KEY: "5"}) == ()


async def test_an_object_that_was_never_seen_is_missed() -> None:
    assert await compared(Watchdog(grace=0.001), {KEY: "5"}) == (KEY,)


async def test_probes_follow_the_watch() -> None:
    watchdog = Watchdog(grace=0.001)
    ready = False
    async with probes.serving(0, watchdog, lambda: ready) as port, aiohttp.ClientSession() as client:

        async def status(path: str) -> int:
            async with client.get(f"http://127.0.0.1:{port}/{path}") as answer:
                await answer.read()
                return answer.status

        assert (await status("healthz"), await status("readyz"), await status("metrics")) == (200, 503, 200)
        ready = True
        assert await status("readyz") == 200
        await compared(watchdog, {KEY: "5"})
        assert await status("healthz") == 503
