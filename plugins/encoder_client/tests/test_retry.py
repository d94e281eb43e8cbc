"""When a request is sent again, and for how long."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest

from encoder_client import BusyError, exchange, retry
from encoder_client.settings import Settings
from encoder_client.work import Answer


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_waits_grow_to_a_bound_and_end_with_the_budget(chance: float) -> None:
    waits = [
        retry.wait(attempt, elapsed=0, budget=60, retry_after=None, chance=chance) or 0.0 for attempt in range(1, 100)
    ]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(retry.FIRST_WAIT * (0.5 + chance / 2))
    assert waits[-1] == pytest.approx(retry.LONGEST_WAIT * (0.5 + chance / 2))
    assert retry.wait(1, elapsed=60, budget=60, retry_after=None, chance=chance) is None
    assert retry.wait(1, elapsed=0, budget=0, retry_after=None, chance=chance) is None


def test_a_client_never_comes_back_before_retry_after() -> None:
    for chance in (0.0, 0.5, 1.0):
        for seconds in (0.0, 1.0, 30.0):
            waited = retry.wait(3, elapsed=0, budget=60, retry_after=seconds, chance=chance)
            assert waited is not None
            assert seconds <= waited <= seconds * 1.25
    assert retry.wait(1, elapsed=0, budget=60, retry_after=61, chance=0) is None
    assert retry.wait(1, elapsed=40, budget=60, retry_after=30, chance=0) is None


def test_the_time_for_retries_counts_from_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0, 108.0, 112.0])
    monkeypatch.setattr("encoder_client.exchange.time", SimpleNamespace(monotonic=lambda: next(clock)))
    attempts = exchange.Attempts(Settings(url="http://minilm", retry_seconds=10))
    answer = Answer(bytearray(b"full"), {"retry-after": "1"})
    assert [1 <= attempts.busy(answer, 503) <= 1.25 for _ in range(3)] == [True] * 3
    with pytest.raises(BusyError, match="full"):
        attempts.busy(answer, 503)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:07 GMT"}, 30.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "nonsense"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry.retry_after(headers) == seconds


def test_a_date_is_compared_with_the_given_time() -> None:
    now = datetime(1994, 11, 6, 8, 49, 0, tzinfo=UTC)
    assert retry.retry_after({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, now) == 37.0


@pytest.mark.parametrize(
    ("cause", "later"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (socket.gaierror(socket.EAI_AGAIN, "temporary failure"), True),
        (socket.gaierror(socket.EAI_NONAME, "unknown name"), False),
        (ssl.SSLCertVerificationError("unknown issuer"), False),
    ],
)
def test_only_connections_that_may_succeed_later_are_tried_again(cause: Exception, later: bool) -> None:
    middle = OSError("all connection attempts failed")
    middle.__context__ = cause
    error = httpx.ConnectError("failed")
    error.__cause__ = middle
    assert retry.may_connect_later(error) is later
