"""What the operator reads beside the snapshot."""

from __future__ import annotations

import json

import pytest

from encoder_operator.revisions.hashing import Json
from encoder_operator.state import observer

PROGRESS: Json = {"phase": "reference", "bytes": 7, "total": 9}


@pytest.mark.parametrize(
    "printed",
    [{"phase": "eval", "bytes": "1 MB"}, {"phase": 3}, {"phase": "x", "total": None}, ["phase"], {"loss": 1.5}],
)
def test_json_that_is_no_progress_is_passed_over(printed: object) -> None:
    log = f"{json.dumps(PROGRESS)}\n{json.dumps(printed)}\nno JSON\n"
    assert observer._last_progress_line(log) == PROGRESS
