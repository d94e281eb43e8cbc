"""What the dashboard of the chart shows of a cluster under load, and a rollout that fails, as numbers for `make dashboard`.

`python -m encoder_platform.dashboard RECORD.json` brings up the cluster of the demo with two models, has a real Prometheus read it for some
minutes while clients send requests, and stores what the dashboard's own queries answer.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from encoder_platform import client, install, manifests, prometheus_server
from encoder_platform.chart import CHART
from encoder_platform.kube import JOB, POD, Body, condition
from encoder_platform.prometheus_server import Prometheus, Series
from encoder_platform.publish import publish
from encoder_platform.space import Space, make_space

DASHBOARD = CHART / "files" / "dashboard.json"
NAMESPACE = "search"
# what Grafana puts in, for points so close to each other
INTERVALS = {"$__rate_interval": "30s"}
STEP_SECONDS = 5
RATE_SECONDS = 15
OTHER_POOLING = ["--pooler-config", json.dumps({"seq_pooling_type": "CLS"})]


def queries(dashboard: Body) -> list[Body]:
    """Return each panel with its title, unit, place and queries; rows have no queries. Pure."""
    found = []
    for panel in dashboard["panels"]:
        wanted = [(target["expr"], target["legendFormat"]) for target in panel.get("targets", [])]
        for name, value in INTERVALS.items():
            wanted = [(expression.replace(name, value), legend) for expression, legend in wanted]
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        found.append({"title": panel["title"], "unit": unit, "place": panel["gridPos"], "queries": wanted})
    return found


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Return a legend with its labels put in, as Grafana does. Pure."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def lines(series: Iterable[Series], legend: str, start: float) -> list[Body]:
    """Return series as they are drawn: seconds since `start`, four digits, without what is not a number. Pure."""
    found = []
    for each in series:
        points = [[round(at - start), float(f"{value:.4g}")] for at, value in each.points if value == value]
        if points:
            found.append({"legend": named(legend, each.labels), "points": points})
    return found


def answered(server: Prometheus, start: float, end: float) -> list[Body]:
    """Return every panel with what Prometheus answers to its queries."""
    found = []
    for panel in queries(json.loads(DASHBOARD.read_text())):
        drawn = [
            line
            for expression, legend in panel.pop("queries")
            for line in lines(server.range(expression, start, end, STEP_SECONDS), legend, start)
        ]
        found.append({**panel, "series": drawn})
    return found


def seconds(stamp: str | None) -> float | None:
    """Return a time of the API server in seconds since 1970. Pure."""
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()


def _since(body: Body, kind: str) -> float | None:
    found = condition(body, kind)
    return seconds(found.get("lastTransitionTime")) if found.get("status") == "True" else None


def timeline(pods: Iterable[Body], jobs: Iterable[Body], verified: str, start: float, end: float) -> list[Body]:
    """Return the bars of a rollout: what each pod and parity Job did, from when to when, in seconds since `start`. Pure.

    Args:
        pods: States of the model's serving pods, in the order in which they were seen.
        jobs: The same of its parity Jobs; the last state of each counts.
        verified: The revision that serves.
        start: When the picture begins.
        end: When it ends.
    """
    bars = []

    def bar(row: str, what: str, begin: float | None, over: float | None) -> None:
        begin, over = max(begin or start, start), min(over or end, end)
        if over > begin:
            bars.append({"row": row, "what": what, "from": round(begin - start, 1), "to": round(over - start, 1)})

    states: dict[str, list[Body]] = {}
    for body in pods:
        states.setdefault(body["metadata"]["uid"], []).append(body)
    for seen in states.values():
        metadata = seen[0]["metadata"]
        row = "verified revision" if metadata["labels"]["encoders.dev/revision"] == verified else "candidate"
        # a pod that ends is not ready any more
        started, opened = (
            next(filter(None, (_since(pod, kind) for pod in seen)), None)
            for kind in ("ContainersReady", "encoders.dev/parity")
        )
        ending = [pod["metadata"] for pod in seen if "deletionTimestamp" in pod["metadata"]]
        # the stamp is the end of the grace period, which the kubelet sets to 0 when the containers have ended
        stamps = [seconds(each["deletionTimestamp"]) for each in ending]
        over = stamps[0] - ending[0].get("deletionGracePeriodSeconds", 0) if stamps and stamps[0] else None
        bar(f"pod of the {row}", "starts", seconds(metadata["creationTimestamp"]), started or over)
        if started is not None:
            bar(f"pod of the {row}", "waits, gate closed", started, opened or over)
        if opened is not None:
            bar(f"pod of the {row}", "serves", opened, over)
        if over is not None:
            bar(f"pod of the {row}", "ends", over, stamps[-1])
    for job in {body["metadata"]["uid"]: body for body in jobs}.values():
        status, ours = job.get("status", {}), job["metadata"]["labels"]["encoders.dev/revision"] == verified
        ended = status.get("completionTime") or condition(job, "Failed").get("lastTransitionTime")
        if not ours and status.get("startTime"):
            bar("parity Job of the candidate", "compares", seconds(status["startTime"]), seconds(ended))
    return bars


def load(space: Space, ner: Body) -> None:
    """Send requests to both models, more than one takes on at once, and apply a model whose source does not exist."""
    kube, url = space.kube, space.url()
    extract = [{"model": "ner", "data": ner}] * 150
    with client.traffic(kube, space.name, url, clients=2):
        client.post_many(kube, space.name, space.url("ner"), [*extract], clients=2)
        time.sleep(20)
    # more than the pod takes on at once
    with client.traffic(kube, space.name, url, clients=16):
        time.sleep(25)
    missing = {
        "source": {"huggingFace": {"repo": "demo/missing", "revision": "1" * 40, "endpoint": manifests.HUB_ENDPOINT}}
    }
    space.apply_model("missing", **missing)
    time.sleep(10)


def failed_rollout(space: Space, server: Prometheus) -> Body:
    """Roll out a wrong edit under load, and return what pods, Jobs and clients saw of it."""
    kube = space.kube
    active = space.model()["status"]["activeRevision"]
    with (
        client.traffic(kube, space.name, space.url(), clients=2) as traffic,
        kube.watching(POD, space.name, "encoders.dev/model=minilm,encoders.dev/component=serving") as pods,
        kube.watching(JOB, space.name, "encoders.dev/model=minilm,encoders.dev/component=parity") as jobs,
    ):
        # as long as the rate below looks back
        time.sleep(RATE_SECONDS)
        start, sent = time.time(), traffic.sent
        time.sleep(10)
        edited = time.time()
        space.patch_serving({"args": OTHER_POOLING})
        space.wait_condition("UpToDate", "ParityFailed")
        failed = time.time()
        time.sleep(20)
    end = time.time()
    rate = f'sum(rate(encoder_serving_requests_total{{model="minilm"}}[{RATE_SECONDS}s]))'
    (requests,) = lines(server.range(rate, start, end, STEP_SECONDS), "", start)
    return {
        "seconds": round(end - start),
        "requests": requests["points"],
        "bars": timeline(pods, jobs, active, start, end),
        "marks": {"edit applied": round(edited - start, 1), "UpToDate: ParityFailed": round(failed - start, 1)},
        "sent": traffic.sent - sent,
        "failed": len(traffic.failures),
    }


def record() -> Body:
    """Bring everything up, let it run, and return what was seen."""
    from encoder_checkpoints import samples
    from encoder_plugins import catalog

    platform = install.bring_up(["sentence_transformer", "deberta_gliner"])
    kube, sample = platform.kube, samples.of(catalog.get("deberta_gliner"))
    with tempfile.TemporaryDirectory() as scratch, prometheus_server.running(kube, Path(scratch)) as server:
        revision = publish(kube, "demo/ner", sample.build(Path(scratch) / "ner"))
        start = time.time()
        space = make_space(platform, NAMESPACE)
        try:
            space.apply_model(serving={"maxInFlight": 8})
            space.apply_model("ner", plugin="deberta_gliner", repository="demo/ner", revision=revision)
            space.wait_ready("ner")
            space.wait_ready()
            load(space, dict(sample.demo))
            rollout = failed_rollout(space, server)
            panels = json.loads(json.dumps(answered(server, start, time.time())).replace(space.name, NAMESPACE))
        finally:
            kube.delete(("v1", "Namespace"), space.name)
    return {"panels": panels, "rollout": rollout}


def main() -> int:
    """Write the record that the argument names."""
    (path,) = sys.argv[1:]
    Path(path).write_text(json.dumps(record(), separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
