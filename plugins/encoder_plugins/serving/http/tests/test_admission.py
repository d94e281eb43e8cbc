"""What is decided by headers and bytes alone, at its borders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from encoder_plugins.plugin import REQUEST_LIMITS
from encoder_plugins.serving.http.admission import (
    MOST_HEADER_BYTES,
    ClientDisconnected,
    Message,
    Refusal,
    Scope,
    check_header_size,
    check_headers,
    discard_body,
    read_body,
)
from encoder_plugins.serving.limits import RequestLimits

LIMITS = RequestLimits(**{limit.name: limit.default for limit in REQUEST_LIMITS} | {"body_bytes": 100})


def given(messages: Iterable[Message]) -> Callable[[], Awaitable[Message]]:
    """Return an ASGI receive that gives some messages, and then waits for ever."""
    rest = iter(messages)

    async def receive() -> Message:
        for message in rest:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def test_a_refusal_repeats_a_header_up_to_a_bound() -> None:
    with pytest.raises(Refusal) as refused:
        check_headers({"content-type": "x" * 60_000}, LIMITS)
    message = refused.value.message
    assert len(message) == 2_502
    assert message.startswith("the content type is xxx")
    assert message.endswith("xxx; it must be application/json")


def test_headers_are_counted_with_the_path_and_each_of_the_same_name() -> None:
    scope: Scope = {"raw_path": b"/pooling", "query_string": b"a=b", "headers": [(b"x", b"y" * 1000)] * 60}
    check_header_size(scope)
    scope["headers"] += [(b"x", b"y" * (MOST_HEADER_BYTES - 60 * 1005 - 11 - 5))]
    check_header_size(scope)
    with pytest.raises(Refusal) as refused:
        check_header_size({**scope, "query_string": b"a=bc"})
    assert (refused.value.status, refused.value.param) == (431, "headers")
    assert str(refused.value) == "the headers are larger than 65536 bytes, the limit"


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({"content-length": "101"}, (413, "the body is larger than 100 bytes, the limit")),
        ({"content-length": "100"}, None),
        # what is not a number is counted while the body comes
        ({"content-length": "²"}, None),
        ({"content-length": "many"}, None),
        ({"content-type": ""}, (415, "the content type is missing; it must be application/json")),
        ({"content-type": "text/html"}, (415, "the content type is text/html; it must be application/json")),
        ({"content-encoding": "br"}, (415, "the body is encoded; send it as it is")),
    ],
)
def test_headers_are_refused_before_a_byte_of_the_body_is_kept(
    headers: dict[str, str], refusal: tuple[int, str] | None
) -> None:
    sent = {"content-type": "application/json"} | headers
    if refusal is None:
        check_headers(sent, LIMITS)
        return
    with pytest.raises(Refusal) as refused:
        check_headers(sent, LIMITS)
    assert (refused.value.status, str(refused.value)) == refusal


async def test_a_body_ends_with_the_first_message_that_announces_no_other() -> None:
    parts = [b"a" * 60, b"b" * 40]
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    assert await read_body(given([*messages, {"type": "http.request"}]), LIMITS) == b"".join(parts)
    with pytest.raises(Refusal, match="100 bytes"):
        await read_body(given([*messages, {"type": "http.request", "body": b"c"}]), LIMITS)
    with pytest.raises(ClientDisconnected):
        await read_body(given([*messages, {"type": "http.disconnect"}]), LIMITS)


async def test_what_is_thrown_away_of_a_body_is_bounded() -> None:
    mebibyte = bytes(1 << 20)
    endless: list[Message] = [{"type": "http.request", "body": mebibyte, "more_body": True}] * 200
    messages = iter(endless)
    await discard_body(given(messages), 60)
    # the 65th goes beyond 64 MiB
    assert len(list(messages)) == 200 - 65


@pytest.mark.parametrize("end", [[{"type": "http.disconnect"}], [], [{"type": "http.request"}]])
async def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(end: list[Message]) -> None:
    messages: list[Message] = [{"type": "http.request", "body": b"x", "more_body": True}, *end]
    rest = iter(messages)
    await asyncio.wait_for(discard_body(given(rest), 0.05), 30)
    assert list(rest) == []
