from __future__ import annotations

from pathlib import Path

import pytest

from encoder_operator import conditions, reference
from encoder_operator.reasons import Reason

ROOT = Path(__file__).parents[3]


def test_every_reason_has_a_line_and_every_line_a_reason() -> None:
    assert sorted(conditions.advice()) == sorted(Reason)


def test_every_line_names_conditions_that_there_are_and_says_something() -> None:
    for reason, advice in conditions.advice().items():
        assert set(advice.conditions) <= set(conditions.CONDITIONS), reason
        assert advice.meaning, reason
        assert advice.remedy, reason


@pytest.mark.parametrize("path", reference.files(), ids=str)
def test_generated_files_are_committed_as_they_are_generated(path: Path) -> None:
    assert (ROOT / path).read_text() == reference.files()[path], "run `make generate`"
