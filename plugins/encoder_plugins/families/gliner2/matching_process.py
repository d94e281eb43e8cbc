"""The process that matches regular expressions: it can be ended, and Python's ``re`` cannot. Standard library alone; run as a file.

Each line of standard input is a JSON list: the seconds of a processor that are left, then checks as ``[pattern, flags, whole, values]``.
The line that answers is a JSON list: the seconds that it took, then for each check a list with whether each value matches, or a string:
why the pattern is none.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time
import warnings

MOST_BYTES = 1 << 30


def matched(pattern: str, flags: int, whole: bool, values: list[str]) -> list[bool] | str:
    """Return whether each value matches; a string says why nothing can."""
    try:
        # what Python announces to read in another way one day is still read
        compiled = re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError, ValueError, MemoryError) as error:
        return str(error) or type(error).__name__
    match = compiled.fullmatch if whole else compiled.search
    return [match(value) is not None for value in values]


def main() -> None:
    """Answer lines until there are no more; the timer's signal ends the process in the midst of a match."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        seconds, *checks = json.loads(line)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answers = [matched(*check) for check in checks]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([time.process_time() - begun, *answers]), flush=True)


if __name__ == "__main__":
    main()
