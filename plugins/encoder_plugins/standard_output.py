"""Ends a command whose standard output cannot be written (a full disk, a closed pipe) with one line and a status of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, TextIO

# sysexits.h: an error while a file is read or written
FAILED = 74


class _UnwritableError(Exception):
    """Standard output cannot be written."""


class _Checked:
    """A stream whose errors cannot be taken for those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _UnwritableError(error.strerror) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _UnwritableError(error.strerror) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def checked(command: Callable[[], int]) -> int:
    """Run ``command``, write out what it printed, and return its exit status, or ``FAILED`` if that cannot be written."""
    if sys.stdout is None:
        # the process was started without a standard output, and `print` prints nothing
        return command()
    stream: Any = _Checked(sys.stdout)
    try:
        with redirect_stdout(stream):
            try:
                return command()
            finally:
                stream.flush()
    except _UnwritableError as error:
        # the interpreter flushes once more when it ends, and would print a traceback about what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"standard output cannot be written: {error}", file=sys.stderr)
        return FAILED
