"""What a source's Retry-After means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from encoder_plugins.prep.sources.retry import retry_after


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), (" 120 ", 120.0), ("0", None), ("", None), (None, None), ("soon", None), ("-1", None), ("1e9", None)],
)
def test_seconds_are_read_and_nonsense_is_not(text: str | None, seconds: float | None) -> None:
    assert retry_after(text) == seconds


def test_a_date_is_read_and_one_that_is_past_is_none() -> None:
    now = datetime.now(UTC)
    found = retry_after(format_datetime(now + timedelta(hours=1), usegmt=True))
    assert found is not None
    assert 3500 < found <= 3600
    assert retry_after(format_datetime(now - timedelta(hours=1), usegmt=True)) is None
