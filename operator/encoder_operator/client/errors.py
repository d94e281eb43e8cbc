"""Errors of requests to the API server.

OperatorError
├── NotConfigured        there is neither a usable kubeconfig nor a service account
└── ApiServerError       the API server did not do what was requested
    ├── RequestRejected  and will not, unless something changes (forbidden, invalid)
    ├── NotLeader        the request was not sent, because another operator may be the leader
    └── Unavailable      but may on a retry (throttled, server error, no connection)
        ├── Conflict     the object has changed since it was read
        └── WebhookFailed  an admission webhook could not be called
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


class WebhookFailed(Unavailable):
    """The API server could not call an admission webhook, which lasts until an administrator repairs it."""


class NotLeader(ApiServerError):
    """This operator does not hold the Lease, so nothing may be written."""


# messages of the API server with status 500: for an apply of a field of another type than in the schema, and for a webhook
_WRONG_TYPE = "failed to create typed patch object"
_WEBHOOK = "failed calling webhook"
# of etcd, for an object that is too large to store, and of its client, for one that is too large to send
_TOO_LARGE = ("request is too large", "trying to send message larger than max")


def error_for(message: str, status: int, retry_after: float | None) -> ApiServerError:
    """Return the error for a response of the API server.

    Args:
        message: What was requested, and what the API server said.
        status: HTTP status.
        retry_after: Seconds of the header Retry-After, if there is one.
    """
    if status == 409:
        return Conflict(message, status=status)
    if status >= 500 and any(text in message for text in (_WRONG_TYPE, *_TOO_LARGE)):
        return RequestRejected(message, status=status)
    if status >= 500 and _WEBHOOK in message:
        return WebhookFailed(message, status=status, retry_after=retry_after)
    # 408 and 410: the request timed out, or the continue token of a list expired; a new request succeeds
    if status in (401, 408, 410, 429) or status >= 500:
        return Unavailable(message, status=status, retry_after=retry_after)
    return RequestRejected(message, status=status)
