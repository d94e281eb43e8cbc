"""What prep reports and what it exits with, against what the operator makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_operator.planner import artifact
from encoder_operator.resources import prep_job
from encoder_operator.status.reasons import Reason
from encoder_plugins import errors
from encoder_plugins.errors import PrepareError

PAGE = Path(__file__).parents[4] / "docs" / "preparation.md"
# what nobody foresaw, and what another try meets anew: told with the message that came
GENERAL = {"PrepareFailed", "Transient"}


def every(kind: type[PrepareError] = PrepareError) -> list[type[PrepareError]]:
    return [kind, *(further for sub in kind.__subclasses__() for further in every(sub))]


@pytest.mark.parametrize("error", every(), ids=lambda error: error.code)
def test_every_code_is_a_reason(error: type[PrepareError]) -> None:
    if error.code in GENERAL:
        assert error.code not in artifact._REASON_BY_CODE
    else:
        assert artifact._REASON_BY_CODE[error.code] is Reason(error.code)


@pytest.mark.parametrize("error", every(), ids=lambda error: error.code)
def test_only_what_another_try_may_not_meet_is_tried_again(error: type[PrepareError]) -> None:
    final = error.exit_status in prep_job.FINAL_EXIT_CODES
    # what nobody foresaw may be anything
    assert final == (not issubclass(error, errors.Transient) and error is not PrepareError)


@pytest.mark.parametrize("error", every(), ids=lambda error: error.code)
def test_the_page_has_a_row_for_each(error: type[PrepareError]) -> None:
    again = "no" if error.exit_status in prep_job.FINAL_EXIT_CODES else "yes"
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    found = [row for row in rows if row and row[0] == error.code]
    assert [row[1:3] for row in found] == [[str(error.exit_status), again]]
