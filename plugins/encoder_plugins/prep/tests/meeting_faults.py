"""Runs `every_write.py` in a process of its own, which it changes for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("every_write.py")


def every_write(fault: str, source: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Run a prep for each write, and return what was found; nothing may be wrong."""
    command = [sys.executable, str(SCRIPT), fault, source, str(folder), json.dumps(options)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    assert found["problems"] == []
    return found
