"""Record what a command prints in a terminal, as a picture: `python -m encoder_platform.recording PICTURE.svg COMMAND ...`.

Needs rich and nothing of ours: `make pictures` provides it.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import sys
import time
from pathlib import Path

COLUMNS = 110
# what moves the cursor, or requests something from the terminal: a picture has no cursor
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\x1b\][^\x07]*\x07")
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run(command: list[str]) -> tuple[str, float]:
    """Run a command in a terminal of its own; return what it printed, and the seconds that it took.

    Raises:
        SystemExit: The command failed, with its status.
    """
    printed = bytearray()

    def read(descriptor: int) -> bytes:
        content = os.read(descriptor, 4096)
        printed.extend(content)
        return content

    began = time.monotonic()
    if status := os.waitstatus_to_exitcode(pty.spawn(command, read)):
        raise SystemExit(status)
    return printed.decode("utf-8", errors="replace"), time.monotonic() - began


def shown(printed: str, home: str) -> str:
    """Return what stays on the screen, with colours: of a line that was written again, the last; ``home`` is written as `~`. Pure."""
    lines = _CONTROL.sub("", printed).replace(home, "~").replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines).strip("\n")


def picture(command: list[str], text: str, seconds: float) -> str:
    """Return the terminal as SVG."""
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(f"[bold green]$[/] {shlex.join(command)}")
        console.print(Text.from_ansi(text))
        title = f"{shlex.join(command)}: {seconds:.0f} s"
        drawn = console.export_svg(title=title, unique_id="terminal")
    # a reader's browser fetches nothing: it has a font of this kind
    return _FONTS.sub("", drawn)


def main() -> int:
    """Run the command, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    printed, seconds = run(given.command)
    given.picture.write_text(picture(given.command, shown(printed, str(Path.home())), seconds), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
