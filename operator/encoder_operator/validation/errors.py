"""The error of a spec that the operator does not act on."""

# ruff: noqa: N818
from __future__ import annotations

from encoder_operator.client.errors import OperatorError
from encoder_operator.status.reasons import Reason


class NotAccepted(OperatorError):
    """The resource can't be acted on until a person changes it."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
