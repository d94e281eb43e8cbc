"""`kubectl encoders`, as kubectl runs it: from the PATH, with kubectl itself on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from encoder_platform.kube import Kube

FOLDER = Path(__file__).parents[3] / "operator"


def run(kube: Kube, namespace: str, *arguments: str) -> tuple[int, str]:
    """Run `kubectl encoders` in a namespace; return its exit status, and what it wrote to both outputs."""
    path = os.pathsep.join((str(kube.kubectl.parent), str(FOLDER), os.environ["PATH"]))
    done = subprocess.run(
        [str(kube.kubectl), "encoders", "--namespace", namespace, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kube.environment(), "PATH": path},
    )
    return done.returncode, f"{done.stdout}{done.stderr}"
