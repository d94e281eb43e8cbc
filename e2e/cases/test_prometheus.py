"""A real Prometheus reads the pods of the node: the queries of the documentation's autoscalers and of the dashboard have answers."""

import re
import time
from pathlib import Path

import pytest
import yaml

from encoder_node.waiting import wait_for
from encoder_platform import client, dashboard, prometheus_server
from encoder_platform.pages import ROOT
from encoder_platform.prometheus_server import SCRAPE_SECONDS, Prometheus
from encoder_platform.space import Space

# too long for CI beside the build of Prometheus
pytestmark = pytest.mark.soak

PAGE = (ROOT / "docs" / "autoscaling.md").read_text()
(SCALED,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?kind: ScaledObject.*?)```", PAGE, re.DOTALL))
LIMIT = 8
MODEL = {"serving": {"maxInFlight": LIMIT}}
# what only happens when something goes wrong, or to more than one operator
QUIET = {"Rejected requests by reason", "Corrected children", "Parity results"}


def value(server: Prometheus, query: str) -> float:
    """The one number that a query answers with."""
    (found,) = server.query(query)
    return found.points[-1][1]


def test_autoscalers_and_the_dashboard_get_numbers(served: Space, tmp_path: Path) -> None:
    in_flight, waiting = (
        trigger["metadata"]["query"].replace('"search"', f'"{served.name}"') for trigger in SCALED["spec"]["triggers"]
    )
    with prometheus_server.running(served.kube, tmp_path) as server:
        start = time.time()
        wait_for("the pod is read", lambda: server.query(in_flight), seconds=60)
        assert value(server, in_flight) == 0
        with client.traffic(served.kube, served.name, served.url(), clients=2 * LIMIT):
            # above the threshold in the example, so that KEDA would add a pod
            threshold = float(SCALED["spec"]["triggers"][0]["metadata"]["threshold"])
            wait_for("the load is seen", lambda: value(server, in_flight) > threshold, seconds=60)
            assert value(server, waiting) >= 0
            time.sleep(6 * SCRAPE_SECONDS)
        panels = dashboard.answered(server, start, time.time())
    silent = {panel["title"] for panel in panels if panel["place"]["h"] > 1 and not panel["series"]}
    assert silent <= QUIET
    assert {"Requests by model", "Reconciles by result", "EncoderModels by phase"} <= {
        panel["title"] for panel in panels if any(value > 0 for line in panel["series"] for _, value in line["points"])
    }
