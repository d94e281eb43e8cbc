"""What a server counts of its requests, beside vLLM's own metrics and on the same page.

The numbers hold for the whole pod whichever process answers: several of them write into one folder (prometheus_client's
multiprocess mode, which vLLM turns on), and the page adds them up. vLLM's gauges don't do that across engines.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

_REQUESTS = Counter("encoder_serving_requests", "Requests to POST /pooling, answered in whatever way.", ["plugin"])
_TOKENS = Counter("encoder_serving_tokens", "Tokens of the requests that were passed on to the engine.", ["plugin"])
_REJECTED = Counter("encoder_serving_rejected", "Requests that were refused, by reason.", ["plugin", "reason"])
_IN_FLIGHT = Gauge(
    "encoder_serving_in_flight",
    "Requests at work, from the first byte of the body to the last of the answer.",
    ["plugin"],
    multiprocess_mode="livesum",
)
_LIMIT = Gauge(
    "encoder_serving_in_flight_limit",
    "How many requests may be at work; one more is answered 503.",
    ["plugin"],
    multiprocess_mode="mostrecent",
)

REASONS = {
    400: "invalid",
    404: "unknown_model",
    408: "slow_body",
    413: "too_large",
    415: "content_type",
    503: "overloaded",
}


class Counts:
    """The numbers of one plugin; each exists from the start, for a counter that appears at 1 has not increased."""

    def __init__(self, plugin: str, limit: int) -> None:
        self._requests = _REQUESTS.labels(plugin)
        self._tokens = _TOKENS.labels(plugin)
        self._rejected = {status: _REJECTED.labels(plugin, reason) for status, reason in REASONS.items()}
        self._in_flight = _IN_FLIGHT.labels(plugin)
        _LIMIT.labels(plugin).set(limit)
        self._in_flight.set(0)

    def request(self) -> None:
        """Count a request."""
        self._requests.inc()

    def tokens(self, count: int) -> None:
        """Count the tokens of a request that is passed on."""
        self._tokens.inc(count)

    def rejected(self, status: int) -> None:
        """Count a refusal by the status of its answer; what is no refusal of ours counts for nothing."""
        if status in self._rejected:
            self._rejected[status].inc()

    def at_work(self, count: int) -> None:
        """Say how many requests this process has at work."""
        self._in_flight.set(count)
