"""The process behind ``original``: answers calls on its standard input until that is closed."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from encoder_checkpoints.original import receive, roots, send
from encoder_plugins import python_gc
from encoder_plugins.plugin import resolve


def imported() -> list[str]:
    """Return the modules of ours that this process has imported, and the data beside them: the number of a root, and a path below it."""
    found = []
    files = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    for number, root in enumerate(roots()):
        own = {Path(file) for file in files if file.startswith(f"{root}/")}
        own |= {data for folder in {file.parent for file in own} for data in folder.glob("*.json")}
        found += [f"{number}/{file.relative_to(root)}" for file in own]
    return sorted(found)


def main() -> None:
    """Answer calls, one after the other."""
    python_gc.raise_threshold()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # libraries print what they like
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            function, arguments, options = receive(requests)
        except EOFError:
            return
        try:
            result = "returned", resolve(function)(*arguments, **options)
        except Exception as error:  # the caller gets it
            traceback.print_exc()
            result = "raised", f"{type(error).__name__}: {error}"
        send(answers, result)


if __name__ == "__main__":
    main()
