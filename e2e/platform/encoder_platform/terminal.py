"""The blocks of a page of the documentation, typed into one shell: commands see the variables and jobs of those before them."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# a file's name ends the sentence before its content
_FILE = re.compile(r"[Ss]ave this as `([\w.-]+)`:\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        language: What follows the fence.
        content: What is in it.
        file: The name under which a reader saves it; None for other blocks.
        section: The heading above it.
    """

    language: str
    content: str
    file: str | None
    section: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order. Pure."""
    for found in _FENCE.finditer(page):
        before = page[: found.start()]
        named = _FILE.search(before)
        headings = re.findall(r"^#+ (.*)$", before, re.MULTILINE)
        yield Block(
            language=found[1],
            content=found[2],
            file=named[1] if named else None,
            section=headings[-1] if headings else "",
        )


class Terminal:
    """A shell in a folder of its own, which ends with the `with` block, and its background jobs with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Start the shell.

        Args:
            folder: Where commands run.
            environment: Its variables; nothing of this process is inherited.
        """
        self._folder = folder
        # jobs keep the shell's output open when a command ends it: without this word it would look as if the command went on
        self._ended = secrets.token_hex(8)
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # a group of processes of its own, by which jobs and commands are ended
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        """Return the terminal."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and its jobs."""
        self._end()
        self._shell.wait(30)
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()

    def run(self, commands: str, *, seconds: float) -> str:
        """Run commands until the first one fails, and return what they printed, in the order of its lines.

        Args:
            commands: One or more lines of shell.
            seconds: How long they may take.

        Raises:
            AssertionError: A command failed or took longer; the message has what was printed.
        """
        end, script = secrets.token_hex(8), self._folder / ".commands"
        script.write_text(f"set -euo pipefail\ntrap 'echo {self._ended}' EXIT\n{commands}")
        # commands that read their input would read what is typed next
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"source {script} < /dev/null; echo {end}\n")
        self._shell.stdin.flush()
        timer = threading.Timer(seconds, self._end)
        timer.start()
        printed: list[str] = []
        try:
            assert self._shell.stdout is not None
            for line in self._shell.stdout:
                if line.strip() == end:
                    return "".join(printed)
                if line.strip() == self._ended:
                    break
                printed.append(line)
        finally:
            timer.cancel()
        raise AssertionError(
            f"a command failed, or took longer than {seconds:.0f} s:\n{commands}\n{''.join(printed)[-8000:]}"
        )

    def _end(self) -> None:
        # of a group without processes there is nothing left to end
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
