"""What is decided about a request before the plugin sees it: content type, size, time; and what a refusal looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from encoder_plugins.errors import MOST_MESSAGE, MOST_PARAM, shortened
from encoder_plugins.serving.limits import RequestLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# the request line and all headers; uvicorn's other protocol, h11, has the same bound
MOST_HEADER_BYTES = 64 * 1024

# how much of a refused body is read and thrown away: a client that is cut off while it still sends may never read our answer
DISCARD_BYTES = 64 * 1024 * 1024

_TYPES = {401: "AuthenticationError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """A request that ends here, with the status and the sentence that its client gets."""

    def __init__(self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        # of a header that a client sent, too
        self.message = shortened(message, MOST_PARAM + MOST_MESSAGE + 2)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.retry_after = retry_after


class ClientDisconnected(Exception):  # noqa: N818 - no failure of ours
    """The client has closed its connection; nobody reads an answer."""


def check_header_size(scope: Scope) -> None:
    """Refuse a request by the size of its headers: those that came at once were complete before the connection counted them.

    Raises:
        Refusal: They are larger than the limit (431).
    """
    size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    # with a colon, a space and a line break
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > MOST_HEADER_BYTES:
        raise Refusal(431, f"the headers are larger than {MOST_HEADER_BYTES} bytes, the limit", param="headers")


def check_headers(headers: Mapping[str, str], limits: RequestLimits) -> None:
    """Refuse a request by its headers, before a byte of the body is kept.

    Raises:
        Refusal: Another content type or an encoding (415), or an announced length beyond the limit (413).
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Refusal(
            415, f"the content type is {content_type or 'missing'}; it must be application/json", param="content-type"
        )
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise Refusal(415, "the body is encoded; send it as it is", param="content-encoding")
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdecimal() and int(length) > limits.body_bytes:
        raise too_large(limits)


def too_large(limits: RequestLimits) -> Refusal:
    """Return the refusal of a body beyond the limit."""
    return Refusal(413, f"the body is larger than {limits.body_bytes} bytes, the limit", param="body")


async def read_body(receive: Receive, limits: RequestLimits) -> bytes:
    """Return the whole body.

    Raises:
        Refusal: It is larger than the limit (413), or takes longer (408).
        ClientDisconnected: The client has gone.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > limits.body_bytes:
                    raise too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {limits.body_seconds} s, the limit", param="body") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def discard_body(receive: Receive, seconds: float) -> None:
    """Read and forget the rest of a body, up to a bound, so that the client can read the answer."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > DISCARD_BYTES:
                    return
    except (TimeoutError, ClientDisconnected):
        return


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


class Error(msgspec.Struct, frozen=True):
    """What was wrong with a request."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a refusal, in the shape that OpenAI's API and vLLM have."""

    error: Error


def error_body(refusal: Refusal) -> bytes:
    """Return the body of a refusal."""
    kind = _TYPES.get(refusal.status, "BadRequestError")
    return msgspec.json.encode(ErrorBody(Error(refusal.message, kind, refusal.param, refusal.status)))


async def send_refusal(refusal: Refusal, send: Send) -> None:
    """Answer with a refusal."""
    headers = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
    await send_response(send, refusal.status, error_body(refusal), "application/json", headers)


async def send_response(send: Send, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> None:
    """Write a whole response."""
    fields = [(b"content-type", media_type.encode("latin-1")), (b"content-length", str(len(body)).encode())]
    fields += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
