"""What an HTTP exchange comes to: an answer, or one of the errors of this package. Pure; httpx only lends its exceptions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from encoder_client import retry
from encoder_client.errors import (
    AuthenticationError,
    BusyError,
    ConnectionFailedError,
    EncoderClientError,
    InvalidAnswerError,
    InvalidRequestError,
    NotServedError,
    RequestTimeoutError,
    ServerError,
)
from encoder_client.settings import Settings
from encoder_client.work import Answer

_SHOWN = 200


@dataclass(slots=True)
class Attempts:
    """One request, from when it is sent first until it is answered or given up."""

    settings: Settings
    first_failure: float | None = None
    sent: int = 0
    lost: int = 0

    def failed(self, error: httpx.HTTPError) -> float:
        """Return the seconds to wait before the request is sent again.

        Raises:
            EncoderClientError: It is not sent again.
        """
        url = self.settings.shown_url()
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            raise RequestTimeoutError(f"{url}: no answer within {self.settings.timeout:g} s") from error
        if not isinstance(error, httpx.TransportError):
            raise InvalidAnswerError(f"{url}: {error}") from error
        failure = ConnectionFailedError(f"{url}: {_described(error)}")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            again = retry.may_connect_later(error)
        else:
            self.lost += 1
            again = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError) and (
                self.lost <= retry.LOST_CONNECTIONS
            )
        if not again:
            raise failure from error
        return self._wait(failure, None, error)

    def busy(self, answer: Answer, status: int) -> float:
        """Return the seconds to wait before a request that the server did not take on is sent again.

        Raises:
            BusyError: It is not sent again.
        """
        seconds = retry.retry_after(answer.headers)
        message, param = refusal(answer.content)
        message = message or f"the server answered {status}"
        return self._wait(BusyError(message, status=status, param=param, retry_after=seconds), seconds)

    def _wait(self, failure: EncoderClientError, retry_after: float | None, cause: Exception | None = None) -> float:
        now = time.monotonic()
        self.sent += 1
        if self.first_failure is None:
            # not since the first try: before it a request may have waited for a free connection
            self.first_failure = now
        seconds = retry.wait(
            self.sent,
            elapsed=now - self.first_failure,
            budget=self.settings.retry_seconds,
            retry_after=retry_after,
            chance=random.random(),
        )
        if seconds is None:
            raise failure from cause
        return seconds


def checked(status: int, answer: Answer) -> Answer:
    """Return a good answer.

    Raises:
        EncoderClientError: It is another one.
    """
    if status == 200:
        return answer
    if 300 <= status < 400:
        where = answer.headers.get("location", "nowhere")
        raise InvalidAnswerError(f"the server redirects to {where}; use that address", status=status)
    message, param = refusal(answer.content)
    message = message or f"the server answered {status}"
    if status in (401, 403):
        raise AuthenticationError(message, param=param, status=status)
    if status in (404, 405):
        raise NotServedError(message, param=param, status=status)
    if 400 <= status < 500:
        raise InvalidRequestError(message, param=param, status=status)
    if status >= 500:
        raise ServerError(f"the server answered {status}: {message}", param=param, status=status)
    raise InvalidAnswerError(f"the server answered {status}", status=status)


def refusal(content: bytes | bytearray) -> tuple[str, str | None]:
    """Return message and field of an error in OpenAI's shape; of another body its beginning."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        param = error.get("param")
        if not isinstance(param, str):
            return error["message"], None
        # the error names the field itself, and where a list was split with its position in the call
        return error["message"].removeprefix(f"{param}: "), param
    if isinstance(error, str):
        return error, None
    return bytes(content[:_SHOWN]).decode("utf-8", "replace"), None


def lower(headers: httpx.Headers) -> Mapping[str, str]:
    """Return headers by names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
