"""A recorder that passes a secret to a process that it starts: the tests of secrets must detect it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from encoder_plugins.artifact.reference import Recording


def record(*arguments: Any, **options: Any) -> Recording:
    """Record nothing worth having, carelessly."""
    import dying_prep  # type: ignore[import-not-found]

    pause = "import time; time.sleep(1)"
    subprocess.run(
        [sys.executable, "-c", pause, "kX9wQzArgument"], env={"CARELESS": "kX9wQzVariable"}, check=True, timeout=30
    )
    found: Recording = dying_prep.record(*arguments, **options)
    return found
