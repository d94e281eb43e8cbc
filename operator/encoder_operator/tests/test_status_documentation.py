from __future__ import annotations

import re
from pathlib import Path

import pytest

from encoder_operator import reference, status
from encoder_operator.reasons import Reason

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "status.md").read_text()


def test_every_reason_has_a_row_and_every_row_a_reason() -> None:
    section = PAGE.split("## Reasons")[1].split("## Events")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert sorted(rows) == sorted(reason.value for reason in Reason)


def test_every_condition_has_a_row() -> None:
    section = PAGE.split("## Conditions")[1].split("## Reasons")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == list(status.CONDITIONS)


@pytest.mark.parametrize("path", reference.files(), ids=str)
def test_generated_files_are_committed_as_they_are_generated(path: Path) -> None:
    assert (ROOT / path).read_text() == reference.files()[path], "run `make generate`"
