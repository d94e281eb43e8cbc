"""Regular expressions that values must match, as ``RegexValidator`` of gliner2 2.1.0 applies them.

Python's ``re`` cannot be stopped, and holds the interpreter lock, while it matches or compiles: a process of its own does it, which ends
when a request's expressions have taken their time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner2 import matching_worker
from encoder_plugins.inputs.limited_process import LimitedProcess, ProcessEnded

SECONDS = 0.5
"""How long a processor may be busy with all expressions of a request."""

# on a machine whose processors have much else to do, the same takes longer by the clock
MOST_SECONDS = 30.0
MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Validator:
    """One expression.

    Attributes:
        pattern: The expression.
        flags: Python's flags, together.
        whole: Whether it must match the whole value, not a part of it.
        exclude: Whether values that match are left out, instead of those that do not.
        path: The field of the request.
    """

    pattern: str
    flags: int
    whole: bool
    exclude: bool
    path: str


def flags_of(names: Sequence[str]) -> int:
    """Return the flags of ``re`` with these names, together."""
    return sum(re.RegexFlag[name].value for name in set(names))


class Matcher:
    """Matches expressions in another process, which starts when it is needed first. Threads may share it."""

    def __init__(self) -> None:
        self._process = LimitedProcess(matching_worker.__file__, memory_bytes=MEMORY_BYTES)

    def match(self, seconds: float, checks: Sequence[tuple[str, int, bool, Sequence[str]]]) -> list[Any]:
        """Return what ``matching_worker`` answers.

        Args:
            seconds: How long its processor may be busy.
            checks: Pattern, flags, whether the whole value must match, and values.

        Raises:
            TimeoutError: It took longer, or more memory than it may have.
        """
        try:
            ((found, _),) = self._process.call(checks, processor_seconds=seconds, seconds=MOST_SECONDS)
        except ProcessEnded:
            raise TimeoutError from None
        answers: list[Any] = found
        return answers

    def close(self) -> None:
        """End the process; it also ends with this object."""
        self._process.close()


class Checker:
    """The expressions of one request, and the time that they have left."""

    def __init__(self, matcher: Matcher, seconds: float = SECONDS) -> None:
        self._matcher = matcher
        self._left = seconds

    def compile(self, validators: Sequence[Validator]) -> None:
        """Check expressions before the engine sees anything.

        Raises:
            InvalidRequest: One is none of Python's, or they take too long.
        """
        # one by one: a refusal names the one that takes too long
        for validator in validators:
            (found,) = self._answers([validator], [])
            if isinstance(found, str):
                raise InvalidRequest(
                    f"it is not a regular expression of Python: {found}", param=f"{validator.path}.pattern"
                )

    def accepted(self, validators: Sequence[Validator], values: Sequence[str]) -> list[bool]:
        """Return whether each value is kept.

        Raises:
            InvalidRequest: The expressions take too long.
        """
        answers = self._answers(validators, values)
        return [
            all(match != validator.exclude for validator, match in zip(validators, matches, strict=True))
            for matches in zip(*answers, strict=True)
        ]

    def _answers(self, validators: Sequence[Validator], values: Sequence[str]) -> list[Any]:
        try:
            took, *answers = self._matcher.match(
                max(self._left, 1e-6), [(one.pattern, one.flags, one.whole, values) for one in validators]
            )
        except TimeoutError:
            raise InvalidRequest(
                f"the expressions of one request may take {SECONDS} s of a processor; they take longer",
                param=f"{validators[0].path}.pattern",
            ) from None
        self._left -= took
        return answers
