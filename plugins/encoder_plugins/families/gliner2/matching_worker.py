"""Matches regular expressions in a process that can be ended, which Python's ``re`` cannot. Standard library alone.

``inputs.limited_worker`` runs it as a file.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

warnings.simplefilter("ignore")


def matched(pattern: str, flags: int, whole: bool, values: list[str]) -> list[bool] | str:
    """Return whether each value matches; a string says why nothing can."""
    try:
        # what Python announces to read in another way one day is still read
        compiled = re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError, ValueError, MemoryError) as error:
        return str(error) or type(error).__name__
    match = compiled.fullmatch if whole else compiled.search
    return [match(value) is not None for value in values]


def answers(checks: list[Any], content: bytes) -> Iterator[tuple[list[Any]]]:
    """Yield one list: the seconds of a processor that it took, then an answer to each check.

    Args:
        checks: Pattern, flags, whether the whole value must match, and values.
        content: Nothing.
    """
    begun = time.process_time()
    found = [matched(*check) for check in checks]
    yield ([time.process_time() - begun, *found],)
