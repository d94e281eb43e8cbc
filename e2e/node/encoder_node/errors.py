"""What can go wrong while a cluster is built, started, used or removed.

NodeError
├── MissingPrerequisiteError   this machine lacks something; the message is one line and names it
├── WrongStateError            the cluster is up when it must be down, or another one is in the way
├── CommandFailedError         a program that we ran ended with an error
└── WaitTimeoutError           something did not happen in time; the message says what was waited for
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TAIL_LINES = 25


class NodeError(Exception):
    """Everything that this package raises on purpose. `log` is the file whose end explains it, if there is one."""

    def __init__(self, message: str, *, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log

    def explain(self) -> str:
        """Returns the message, followed by the end of the log."""
        if self.log is None:
            return str(self)
        lines = tail(self.log)
        shown = "\n".join(f"  | {line}" for line in lines) if lines else "  | (empty)"
        return f"{self}\n  the end of {self.log}:\n{shown}"


class MissingPrerequisiteError(NodeError):
    """This machine lacks something that the cluster needs."""


class WrongStateError(NodeError):
    """The cluster's state does not allow the request."""


class CommandFailedError(NodeError):
    """A program ended with an error."""

    def __init__(self, command: Sequence[str], code: int, output: str = "", *, log: Path | None = None) -> None:
        shown = " ".join(command)
        if len(shown) > 300:
            shown = shown[:300] + " …"
        detail = f": {output.strip()[-2000:]}" if output.strip() else ""
        super().__init__(f"`{shown}` ended with {code}{detail}", log=log)
        self.code = code


class WaitTimeoutError(NodeError):
    """Something did not happen in time."""


def tail(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """Returns the last lines of a log; none if there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
