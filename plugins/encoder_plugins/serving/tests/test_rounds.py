"""A processor that is advanced by hand: as many rounds as it wants, from any thread, with its own errors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving.processor import Engine, Prompt, Response
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance


def prompts(*lengths: int) -> Sequence[Prompt]:
    return [Prompt(token_ids=[1] * length) for length in lengths]


async def two_rounds(engine: Engine) -> Response:
    first: Any = await engine.encode(prompts(1, 2), lora="a")
    assert await engine.encode([]) == []
    second: Any = await engine.encode(prompts(3))
    joined = await engine.compute("{}-{}".format, first, second, size=10**9)
    return Response(body=joined.encode())


def test_each_round_is_handed_out_and_its_tensors_are_handed_in() -> None:
    running: Running = two_rounds(ENGINE)
    first = advance(running)
    assert isinstance(first, Round)
    assert (len(first.prompts), first.tokens, first.lora) == (2, 3, "a")
    found: list[Round | Response] = []
    tensors: Any = ["x", "y"]
    thread = threading.Thread(target=lambda: found.append(advance(running, tensors)))
    thread.start()
    thread.join()
    (second,) = found
    assert isinstance(second, Round)
    assert (second.tokens, second.lora) == (3, None)
    last: Any = ["z"]
    assert advance(running, last) == Response(body=b"['x', 'y']-['z']")


def test_an_error_of_the_processor_is_raised() -> None:
    async def fails(engine: Engine) -> Response:
        await engine.encode(prompts(1))
        raise InvalidRequest("too much", param="data.threshold")

    running: Running = fails(ENGINE)
    advance(running)
    with pytest.raises(InvalidRequest, match="too much"):
        advance(running, [])


def test_a_request_may_need_no_engine() -> None:
    async def run(engine: Engine) -> Response:
        return Response(body=b"{}")

    assert advance(run(ENGINE)) == Response(body=b"{}")
