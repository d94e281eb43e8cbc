"""What calls of this package raise: one class for each thing that a caller may do about it."""

from __future__ import annotations


class EncoderClientError(Exception):
    """The base of every error of this package.

    Attributes:
        param: The field of the request, or the argument of the call, that is wrong, e.g. ``data.texts[3]``; None where it is neither.
            Positions are those of the caller's own list, however the list was split into requests.
        status: The HTTP status of the answer; None where there was no answer.
    """

    def __init__(self, message: str, *, param: str | None = None, status: int | None = None) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.message = message
        self.param = param
        self.status = status

    def relocate(self, param: str | None) -> None:
        """Name another field."""
        self.param = param
        self.args = (f"{param}: {self.message}" if param else self.message,)


class ArgumentError(EncoderClientError, ValueError):
    """An argument that this package or the server cannot honour; nothing was sent for it."""


class InvalidRequestError(EncoderClientError, ValueError):
    """The server refused the request (400, 408, 413, 415, 422, 431): sending it again would be refused again."""


class NotServedError(EncoderClientError):
    """The model, the adapter or the path is not served at this address (404, 405)."""


class AuthenticationError(EncoderClientError):
    """The API key is missing or wrong (401, 403)."""


class BusyError(EncoderClientError):
    """The server was still full or starting (429, 503) when the time for retries ended.

    Attributes:
        retry_after: Seconds that the server's last answer named; None where it named none.
    """

    def __init__(
        self, message: str, *, status: int, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, param=param)
        self.retry_after = retry_after


class ServerError(EncoderClientError):
    """The server, or a proxy before it, failed (any other 5xx)."""


class ConnectionFailedError(EncoderClientError, ConnectionError):
    """There was no connection, or it ended before the answer."""


class RequestTimeoutError(EncoderClientError, TimeoutError):
    """The answer did not arrive within the timeout."""


class InvalidAnswerError(EncoderClientError):
    """What came back is not an answer of an encoder server: another program listens there, or a proxy answered instead."""


class TruncationWarning(UserWarning):
    """A text had more words than the model takes, and its end was left out."""
