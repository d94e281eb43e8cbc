"""How long the work queue waits after a failure."""

from __future__ import annotations

from encoder_operator.client.errors import Conflict, RequestRejected, Unavailable
from encoder_operator.controller import workqueue


def test_the_delay_doubles_after_each_failure_up_to_a_limit() -> None:
    for failures, longest in ((1, 0.5), (2, 1.0), (4, 4.0), (10, 256.0), (11, 300.0), (5000, 300.0)):
        delays = [workqueue._backoff(failures, None) for _ in range(100)]
        assert longest / 2 <= min(delays) < max(delays) <= longest


def test_the_api_servers_own_delay_is_respected() -> None:
    assert workqueue._backoff(1, Unavailable("slow down", retry_after=60)) == 60
    for more in (86400.0, float("inf")):
        assert workqueue._backoff(1, Unavailable("slow down", retry_after=more)) == workqueue._MAX_BACKOFF


def test_a_conflict_is_tried_again_at_once_until_there_were_too_many() -> None:
    conflict = Conflict("changed")
    assert [workqueue._backoff(failures, conflict) < 0.5 for failures in (1, 5, 8)] == [True, True, False]
    assert workqueue._backoff(1, None) <= 0.5
    # what waits for the API server itself waits less long than what a user must correct
    assert workqueue._backoff(5000, Unavailable("down")) <= 30
    assert workqueue._backoff(5000, RequestRejected("quota")) >= 150
