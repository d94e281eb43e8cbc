from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, aiohttp, kopf
from encoder_operator.manager import logs
logs.configure("info")
try:
    raise {error}
except Exception:
    logging.getLogger("kopf.reactor").exception("it failed")
"""


@pytest.mark.parametrize(
    ("error", "traced"),
    [
        ("kopf.LoginError('no credentials')", False),
        ("aiohttp.ServerDisconnectedError()", False),
        ("KeyError('a mistake')", True),
    ],
)
def test_unexpected_errors_are_logged_with_a_traceback_and_expected_ones_without(error: str, traced: bool) -> None:
    program = PROGRAM.format(error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = (json.loads(line) for line in done.stderr.splitlines())
    assert line["event"] == "it failed"
    assert ("exception" in line) is traced
