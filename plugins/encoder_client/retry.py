"""When a request is sent again. Pure: the clock and the randomness are arguments."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

# the server did not take the request on
BUSY = frozenset({429, 503})

FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0

# connections that may be lost before an answer: the server may have closed one that was idle, but a second loss is no accident
LOST_CONNECTIONS = 1


def wait(attempt: int, *, elapsed: float, budget: float, retry_after: float | None, chance: float) -> float | None:
    """Return the seconds to wait before a request is sent again; None where the time for retries is over.

    Args:
        attempt: How often it was sent before, 1 or more.
        elapsed: Seconds since it failed first.
        budget: Seconds within which it may be sent again.
        retry_after: Seconds that the server named, which are the least; None for none.
        chance: From 0 to 1, so that clients which failed together do not come back together.
    """
    backoff = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt - 1, 10))
    if retry_after is None:
        seconds = backoff * (0.5 + chance / 2)
    else:
        seconds = retry_after + min(backoff, retry_after) * chance / 4
    return seconds if elapsed + seconds <= budget else None


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds of the header Retry-After, a number or a date; None where there is none.

    Args:
        headers: Those of the answer, by names in lower case.
        now: The time that a date is compared with; None for that of the answer's own header Date, else that of this machine.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    until = _date(value)
    if until is None:
        return None
    since = now or _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - since).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def may_connect_later(error: httpx.TransportError) -> bool:
    """Return whether a connection that failed may succeed later: it was refused, say; not where the name or the certificate is wrong."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            return False
        if isinstance(cause, socket.gaierror):
            return cause.errno == socket.EAI_AGAIN
    return True


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
