"""The error of a spec that the operator does not accept."""

# ruff: noqa: N818 - named after the condition Accepted
from __future__ import annotations

from encoder_operator.client.errors import OperatorError
from encoder_operator.status.reasons import Reason


class NotAccepted(OperatorError):
    """The operator cannot act on the EncoderModel until the user changes it."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
