"""Errors of the operator.

OperatorError
├── NotAccepted     the EncoderModel says something that the operator will not do; a person must edit it
└── ClusterError    the API server did not do what was asked
    ├── Refused     and never will, as it stands (forbidden, invalid)
    ├── NotLeader   it was not asked: another operator may be at work
    └── Unavailable it may, if asked again (throttled, server error, no connection)
        └── Changed the object is not any more as it was when we looked
"""

# ruff: noqa: N818 - errors are called as what they mean to the one who catches them
from __future__ import annotations


class OperatorError(Exception):
    """Anything that the operator expects to go wrong."""


class ApiServerError(OperatorError):
    """The API server answered with an error, or not at all."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RequestRejected(ApiServerError):
    """Asking again changes nothing until something else does."""


class Unavailable(ApiServerError):
    """Worth asking again, after ``retry_after`` seconds if the server said so."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class Conflict(Unavailable):
    """Somebody changed the object since it was read, so what was decided may be wrong: look again."""


class NotLeader(ApiServerError):
    """The lease is over: nothing may be written."""
