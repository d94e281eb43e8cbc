"""A real Prometheus reads the pods of the node: the queries of the documentation's autoscalers and of the dashboard have answers."""

import re
import time
from pathlib import Path

import pytest
import yaml

from encoder_node.waiting import wait_for
from encoder_platform import client, dashboard, prometheus_server
from encoder_platform.kube import Body
from encoder_platform.pages import ROOT
from encoder_platform.prometheus_server import Prometheus
from encoder_platform.space import Space

# too long for CI beside the build of Prometheus
pytestmark = pytest.mark.soak

PAGE = (ROOT / "docs" / "autoscaling.md").read_text()
(SCALED,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?kind: ScaledObject.*?)```", PAGE, re.DOTALL))
LIMIT = 8
# what only happens when something goes wrong
QUIET = {"Rejected requests by reason", "Corrected children"}
# what this test makes happen
BUSY = {
    "EncoderModels by phase",
    "Parity results",
    "Preparation duration, median and p95",
    "Bytes of prepared artifacts",
    "Requests by model",
    "Concurrent requests and their limit",
    "Reconciles by result",
}


def value(server: Prometheus, query: str) -> float:
    """The one number that a query answers with."""
    (found,) = server.query(query)
    return found.points[-1][1]


def above_zero(panels: list[Body]) -> set[str]:
    """The titles of the panels that show a number above 0."""
    return {panel["title"] for panel in panels if any(v > 0 for line in panel["series"] for _, v in line["points"])}


def test_autoscalers_and_the_dashboard_get_numbers(space: Space, tmp_path: Path) -> None:
    in_flight, waiting = (
        trigger["metadata"]["query"].replace('"search"', f'"{space.name}"') for trigger in SCALED["spec"]["triggers"]
    )
    with prometheus_server.running(space.kube, tmp_path) as server:
        start = time.time()
        # counters of preparations and comparisons have to be read before and after
        wait_for("the operator is read", lambda: server.query("encoder_prep_bytes_total"), seconds=60)
        space.apply_model(serving={"maxInFlight": LIMIT})
        space.wait_ready()
        wait_for("the pod is read", lambda: server.query(in_flight), seconds=60)
        # the last reading may be from the middle of the parity check
        wait_for("no request is in flight", lambda: value(server, in_flight) == 0, seconds=60)
        with client.traffic(space.kube, space.name, space.url(), clients=2 * LIMIT):
            # above the threshold in the example, so that KEDA would add a pod
            threshold = float(SCALED["spec"]["triggers"][0]["metadata"]["threshold"])
            wait_for("the load is seen", lambda: value(server, in_flight) > threshold, seconds=60)
            assert value(server, waiting) >= 0
            # rates need several readings
            wait_for(
                "the panels of what happened show it",
                lambda: above_zero(dashboard.answered(server, start, time.time())) >= BUSY,
                seconds=120,
            )
        panels = dashboard.answered(server, start, time.time())
    assert {panel["title"] for panel in panels if panel["place"]["h"] > 1 and not panel["series"]} <= QUIET
