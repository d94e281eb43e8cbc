"""Progress for a person at a terminal: a padded word, what happened, and how long it took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Step:
    """One line that is being worked on."""

    text: str = ""

    def done(self, text: str) -> None:
        """Say what the line will read when the step has ended."""
        self.text = text


@dataclass
class Report:
    """Prints one line a step, with its seconds at the end."""

    width: int = 66
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, word: str) -> Iterator[Step]:
        """Time a block; its line appears when it has ended, with the text that the block gave."""
        begun, step = time.monotonic(), Step()
        yield step
        self.line(word, f"{step.text:{self.width}s} {time.monotonic() - begun:3.0f} s")

    def line(self, word: str, text: str) -> None:
        """Print one line at once."""
        print(f"  {word:10s} {text}", flush=True)

    def note(self, text: str) -> None:
        """Print a line of detail on standard error, so that standard output stays the report."""
        print(f"             {text}", file=sys.stderr, flush=True)
