"""What is recorded for the pictures of the dashboard and of a rollout."""

import json
from typing import Any

from encoder_platform import chart, dashboard, panels, prometheus_server
from encoder_platform.pages import ROOT
from encoder_platform.prometheus_server import Series

RECORD = json.loads((ROOT / "docs" / "measurements" / "dashboard.json").read_text())


def test_a_panel_has_the_queries_of_the_chart_with_an_interval_put_in() -> None:
    panels = dashboard.queries(json.loads(dashboard.DASHBOARD.read_text()))
    assert len(panels) > 20
    expressions = [expression for panel in panels for expression, _ in panel["queries"]]
    assert any("[30s]" in expression for expression in expressions)
    assert not any("$" in expression for expression in expressions)


def test_a_line_is_named_as_in_grafana_and_has_no_points_that_are_not_numbers() -> None:
    labels = {"namespace": "search", "model": "minilm"}
    found = dashboard.lines(
        [Series(labels, [(100.2, 1.23456), (105.2, float("nan"))]), Series({}, [(100.2, float("nan"))])],
        "{{namespace}}/{{model}} {{other}}limit",
        100,
    )
    assert found == [{"legend": "search/minilm limit", "points": [[0, 1.235]]}]


def pod(uid: str, revision: str, **status: Any) -> dict[str, Any]:
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": f"1970-01-01T00:{at:02d}:00Z"}
        for kind, at in status.pop("since", {}).items()
    ]
    metadata = {"uid": uid, "creationTimestamp": "1970-01-01T00:01:00Z", "labels": {"encoders.dev/revision": revision}}
    return {"metadata": {**metadata, **status}, "status": {"conditions": conditions}}


def test_a_rollout_is_what_pods_and_jobs_did_between_two_times() -> None:
    ends = {"deletionTimestamp": "1970-01-01T00:06:30Z", "deletionGracePeriodSeconds": 30}
    ended = {"deletionTimestamp": "1970-01-01T00:07:00Z", "deletionGracePeriodSeconds": 0}
    pods = [
        pod("1", "good", since={"ContainersReady": 1, "encoders.dev/parity": 2}),
        # the states of one pod
        pod("2", "bad"),
        pod("2", "bad", since={"ContainersReady": 4}),
        pod("2", "bad", since={"ContainersReady": 4}, **ends),
        pod("2", "bad", **ended),
    ]
    job = {
        "metadata": {"uid": "3", "labels": {"encoders.dev/revision": "bad"}},
        "status": {
            "startTime": "1970-01-01T00:04:00Z",
            "conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "1970-01-01T00:05:00Z"}],
        },
    }
    assert dashboard.timeline(pods, [job], "good", 120, 480) == [
        {"row": "pod of the verified revision", "what": "serves", "from": 0, "to": 360},
        {"row": "pod of the candidate", "what": "starts", "from": 0, "to": 120},
        {"row": "pod of the candidate", "what": "waits, gate closed", "from": 120, "to": 240},
        {"row": "pod of the candidate", "what": "ends", "from": 240, "to": 300},
        {"row": "parity Job of the candidate", "what": "compares", "from": 120, "to": 180},
    ]


def test_a_panel_shows_what_is_not_zero_in_a_unit_that_fits() -> None:
    zero, small, large = (
        {"legend": name, "points": [[0, 0], [5, top]]} for name, top in (("z", 0), ("s", 1), ("l", 9))
    )
    assert panels.drawn([zero, small, large]) == [large, small]
    assert panels.drawn([zero]) == [zero]
    assert panels.scaled("bytes", 74_000_000) == ("MiB", 1024**2)
    assert panels.scaled("Bps", 1000) == ("bytes/s", 1)
    assert panels.scaled("short", 5000) == ("", 1)


def test_prometheus_reads_pods_with_the_labels_of_the_charts_monitors() -> None:
    operator = {"metadata": {"namespace": "o", "name": "op", "labels": {}}, "status": {"podIP": "10.0.0.1"}}
    labels = {"encoders.dev/model": "minilm", "encoders.dev/revision": "r"}
    serving = {"metadata": {"namespace": "s", "name": "pod", "labels": labels}, "status": {"podIP": "10.0.0.2"}}
    starting = {**serving, "status": {}}
    found = prometheus_server.targets([operator], [serving, starting])
    assert [entry["targets"] for entry in found] == [["10.0.0.1:8080"], ["10.0.0.2:8000"]]
    assert found[1]["labels"] == {
        "job": "encoder-operator/encoder-operator-serving",
        "namespace": "s",
        "pod": "pod",
        "model": "minilm",
        "revision": "r",
    }
    monitors = (chart.CHART / "templates" / "monitoring.yaml").read_text()
    assert {name for name in found[1]["labels"] if f"targetLabel: {name}" in monitors} == {"model", "revision"}


def test_the_pictures_show_the_panels_that_the_chart_has() -> None:
    titles = [panel["title"] for panel in json.loads(dashboard.DASHBOARD.read_text())["panels"]]
    assert [panel["title"] for panel in RECORD["panels"]] == titles
    pictures = ROOT / "docs" / "pictures"
    drawn = (pictures / "dashboard.svg").read_text()
    assert all(title in drawn for title in titles)
    assert max((pictures / f"{name}.svg").stat().st_size for name in ("dashboard", "rollout")) < 200_000
    assert RECORD["rollout"]["sent"] > 100
    assert RECORD["rollout"]["failed"] == 0
