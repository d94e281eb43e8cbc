"""Errors of requests to the API server.

OperatorError
├── NotConfigured        there is neither a usable kubeconfig nor a service account
└── ApiServerError       the API server did not do what was requested
    ├── RequestRejected  and will not, unless something changes (forbidden, invalid)
    ├── NotLeader        the request was not sent, because another operator may be the leader
    └── Unavailable      but may on a retry (throttled, server error, no connection)
        └── Conflict     the object has changed since it was read
"""

# ruff: noqa: N818 - the names describe the outcome of a request
from __future__ import annotations


class OperatorError(Exception):
    """Base class of expected errors."""


class NotConfigured(OperatorError):
    """There is neither a usable kubeconfig nor a service account, so no API server is known."""


class ApiServerError(OperatorError):
    """The API server returned an error, or did not respond."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RequestRejected(ApiServerError):
    """A retry of the same request would fail again."""


class Unavailable(ApiServerError):
    """A retry may succeed, after `retry_after` seconds if the server sent that header."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class Conflict(Unavailable):
    """The object has changed since it was read, so the decision must be made again."""


class NotLeader(ApiServerError):
    """This operator does not hold the Lease, so nothing may be written."""
