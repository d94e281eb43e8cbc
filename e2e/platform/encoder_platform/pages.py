"""The command of every module that writes generated files: it writes them, or with `--check` says which are not up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def write(files: Mapping[Path, str], arguments: list[str] | None, *, module: str, about: str | None, by: str) -> int:
    """Write the files that differ, or only name them; return the exit status.

    Args:
        files: What belongs into each.
        arguments: The command's; those of the process if None.
        module: The command's name.
        about: What it does.
        by: Who says what belongs into them.
    """
    parser = argparse.ArgumentParser(prog=f"python -m encoder_platform.{module}", description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not up to date")
    check = parser.parse_args(arguments).check
    stale = {path: text for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is not what {by}: run `make generate`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and check else 0
