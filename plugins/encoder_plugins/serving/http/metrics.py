"""What a server counts of its requests, beside vLLM's own metrics and on the same page.

The numbers hold for the whole pod whichever process answers: several of them write into one folder (prometheus_client's
multiprocess mode, which vLLM turns on), and the page adds them up. vLLM's gauges don't do that across engines.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

_REQUESTS = Counter("encoder_serving_requests", "Requests to the plugin's routes, however they ended.", ["plugin"])
_TOKENS = Counter("encoder_serving_tokens", "Tokens that the engine was given.", ["plugin"])
_REJECTED = Counter("encoder_serving_rejected", "Requests that were refused, by reason.", ["plugin", "reason"])
_CANCELLED = Counter(
    "encoder_serving_cancelled", "Requests whose client disconnected before they were answered.", ["plugin"]
)
_IN_FLIGHT = Gauge(
    "encoder_serving_in_flight",
    "Requests in flight, from the first byte of the body until the answer is computed.",
    ["plugin"],
    multiprocess_mode="livesum",
)
_LIMIT = Gauge(
    "encoder_serving_in_flight_limit",
    "The number of requests that may be in flight; one more is answered 503.",
    ["plugin"],
    multiprocess_mode="mostrecent",
)

REASONS = {
    400: "invalid",
    404: "unknown_model",
    408: "slow_body",
    413: "too_large",
    415: "content_type",
    431: "too_large",
    500: "failed",
    503: "overloaded",
}


class Counts:
    """The numbers of one plugin; each exists from the start, for a counter that appears at 1 has not increased."""

    def __init__(self, plugin: str, limit: int) -> None:
        self._requests = _REQUESTS.labels(plugin)
        self._tokens = _TOKENS.labels(plugin)
        self._rejected = {status: _REJECTED.labels(plugin, reason) for status, reason in REASONS.items()}
        self._cancelled = _CANCELLED.labels(plugin)
        self._in_flight = _IN_FLIGHT.labels(plugin)
        _LIMIT.labels(plugin).set(limit)
        self._in_flight.set(0)

    def request(self) -> None:
        """Count a request."""
        self._requests.inc()

    def tokens(self, count: int) -> None:
        """Count the tokens that the engine is given for a request."""
        self._tokens.inc(count)

    def rejected(self, status: int) -> None:
        """Count a refusal by the status of its answer."""
        self._rejected[status].inc()

    def cancelled(self) -> None:
        """Count a request whose client has disconnected."""
        self._cancelled.inc()

    def in_flight(self, count: int) -> None:
        """Publish the number of requests that this process has in flight."""
        self._in_flight.set(count)
