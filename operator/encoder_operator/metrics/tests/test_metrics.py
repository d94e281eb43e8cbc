"""What the operator counts: names by Prometheus' conventions, no series per model, and numbers that alerts can rest on."""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path

import httpx2
import pytest
import yaml
from prometheus_client.metrics_core import Metric

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Status
from encoder_operator.client.client import Client
from encoder_operator.client.errors import Conflict, NotLeader, OperatorError, RequestRejected, Unavailable
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.workqueue import WorkQueue, _Entry
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import PLUGIN, PREPARED, Harness, encoder_model
from encoder_operator.tests.harness import passing_report as equal
from encoder_plugins import catalog

# values come from closed sets: our own words, kinds and verbs, and the answers of HTTP
# `served_namespace` has the values of `watch.namespaces`, which the chart lists
LABELS = {"result", "verb", "kind", "code", "phase", "plugin", "state", "served_namespace"}
KEY = NamespacedName("demo", "minilm")


OPERATIONS = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()


def collected() -> list[Metric]:
    return list(metrics.REGISTRY.collect())


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


class Growth:
    """How much a counter, or a number of observations, has grown since."""

    def __init__(self, name: str, **labels: str) -> None:
        self._sample = (name, labels)
        self._before = value(name, **labels) or 0.0

    def __call__(self) -> float:
        name, labels = self._sample
        return (value(name, **labels) or 0.0) - self._before


def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(s.name, tuple(sorted(s.labels.items()))) for found in collected() for s in found.samples}


def test_metric_names_contain_the_unit() -> None:
    for found in collected():
        # a process is described by the names that every program has
        assert found.name.startswith(("encoder_", "process_")), found.name
        assert found.documentation.endswith("."), found.name
        samples = {sample.name for sample in found.samples if not sample.name.endswith("_created")}
        match found.type:
            case "counter":
                assert samples <= {f"{found.name}_total"}, samples
            case "histogram":
                assert found.name.endswith("_seconds"), found.name
            case "gauge":
                assert not found.name.endswith(("_total", "_count", "_sum")), found.name
            case other:
                raise AssertionError(f"{found.name} is a {other}")


def test_every_name_is_in_the_documentation() -> None:
    ours = [found.name for found in collected() if found.name.startswith("encoder_")]
    assert [name for name in ours if f"`{name}" not in OPERATIONS] == []
    assert "`process_resident_memory_bytes`" in OPERATIONS


def test_the_example_for_kube_state_metrics_knows_every_phase() -> None:
    (example,) = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", OPERATIONS, re.DOTALL)]
    (resource,) = example["spec"]["resources"]
    assert resource["groupVersionKind"] == {"group": naming.GROUP, "version": naming.VERSION, "kind": naming.KIND}
    phases = Status.model_json_schema()["properties"]["phase"]["description"]
    known = re.findall(r"\b[A-Z]\w+", phases.removeprefix("Summary of the conditions:"))
    assert len(known) > 5
    (metric,) = resource["metrics"]
    assert metric["each"]["stateSet"]["list"] == known
    assert metric["each"]["stateSet"]["path"] == ["status", "phase"]


async def test_models_and_namespaces_make_no_series() -> None:
    async def looked(name: str, namespace: str) -> None:
        harness = Harness()
        manifest = copy.deepcopy(encoder_model())
        manifest["metadata"] |= {"name": name, "namespace": namespace}
        harness.fake.put("encodermodels", manifest)
        queue = WorkQueue(lambda key: harness.reconciler.reconcile(*key), concurrency=1)
        for key in (NamespacedName("demo", "minilm"), NamespacedName(namespace, name)):
            await queue._reconcile_key(key, _Entry())

    await looked("first", "demo")
    before = series()
    for number in range(20):
        await looked(f"model-{number}", f"team-{number}")
    assert series() == before
    used = {label for _, labels in before for label, _ in labels} - {"le"}
    assert used <= LABELS


def test_what_alerts_watch_is_there_at_zero_before_anything_happens() -> None:
    # `increase` of a series that appears with its first failure is 0, and no alert would fire
    metrics.initialize(catalog.plugins())
    for plugin in catalog.plugins():
        for result in ("Passed", "Failed", "Inconclusive"):
            assert value("encoder_parity_results_total", plugin=plugin, result=result) is not None, (plugin, result)
    for result in ("ok", "InternalError"):
        assert value("encoder_reconcile_total", result=result) is not None


@pytest.mark.parametrize("operators", [1, 2], ids=["one-operator", "restarted-at-every-look"])
async def test_each_comparison_is_counted_once(operators: int) -> None:
    def counted() -> dict[str, float]:
        results = ("Passed", "Failed", "Inconclusive")
        return {r: value("encoder_parity_results_total", plugin=PLUGIN, result=r) or 0.0 for r in results}

    metrics.initialize([PLUGIN])
    harness = Harness()
    before = counted()

    async def settle() -> None:
        for _ in range(12):
            if operators == 2:
                harness.reconciler = harness.operator()
            assert isinstance(harness.reconciler, Reconciler)
            await harness.reconcile()
            harness.jobs()
            harness.deployment()

    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await settle()
    for job in harness.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    harness.parity = equal
    await settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert {r: n - before[r] for r, n in counted().items()} == {"Passed": 1.0, "Failed": 0.0, "Inconclusive": 1.0}


def test_the_operators_memory_is_a_number_beside_the_others() -> None:
    resident = value("process_resident_memory_bytes")
    assert resident is not None
    # what imports alone take, and less than any node has
    assert 10e6 < resident < 10e9


async def test_models_are_counted_by_phase_until_they_are_gone() -> None:
    def counted() -> dict[str, float]:
        phases = ("Pending", "Preparing", "Verifying", "Serving", "Failed")
        return {phase: n for phase in phases if (n := value("encoder_models", phase=phase, plugin=PLUGIN))}

    # what the operators of other tests have counted
    metrics.MODELS.clear()
    harness = Harness()
    harness.operator_settings = harness.operator_settings.model_copy(update={"max_preps": 1})
    harness.reconciler = harness.operator()
    await harness.reconcile()
    assert harness.status["phase"] == "Preparing"
    assert counted() == {"Preparing": 1}
    other = copy.deepcopy(encoder_model())
    other["metadata"]["name"] = "other"
    harness.fake.put("encodermodels", other)
    await harness.reconciler.reconcile("demo", "other")
    assert counted() == {"Preparing": 1, "Pending": 1}
    await harness.settle()
    assert counted() == {"Serving": 1, "Pending": 1}
    # looks at what has not changed count nobody twice
    await harness.reconcile()
    assert counted() == {"Serving": 1, "Pending": 1}
    harness.fake.remove("encodermodels", "demo", "other")
    await harness.reconciler.reconcile("demo", "other")
    assert counted() == {"Serving": 1}
    harness.fake.remove("encodermodels", "demo", "minilm")
    await harness.reconciler.reconcile("demo", "minilm")
    assert counted() == {}


async def test_a_preparation_is_measured_once() -> None:
    number, sum_, made = Growth("encoder_prep_seconds_count"), Growth("encoder_prep_seconds_sum"), Growth(_BYTES)
    harness = Harness()
    await harness.reconcile()
    (job,) = harness.fake.of("jobs", component="prep")
    job["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    harness.jobs()
    for pod in harness.fake.of("pods", component="prep"):
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2026-02-01T00:01:30Z"
        # the attempts of its Job before and behind it
        before, behind = copy.deepcopy(pod), copy.deepcopy(pod)
        ended = before["status"]["containerStatuses"][0]["state"]["terminated"]
        ended |= {"exitCode": 75, "finishedAt": "2026-02-01T00:00:30Z"}
        behind["status"] = {"phase": "Pending"}
        for name, other in (("minilm-0", before), ("minilm-1", behind)):
            other["metadata"] |= {"name": name, "uid": name}
            harness.fake.put("pods", other)
    # one that failed, of an earlier spec, has made nothing
    (done,) = harness.fake.of("jobs", component="prep")
    failed = copy.deepcopy(done)
    failed["metadata"] |= {"name": "minilm-0000000000000000-prep", "uid": "failed"}
    failed["status"]["conditions"][0]["type"] = "Failed"
    harness.fake.put("jobs", failed)
    # the Job controller is slower than the operator, which reads the pod's report
    done["status"]["conditions"].clear()
    for _ in range(12):
        harness.reconciler = harness.operator()
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
    assert harness.condition("Ready") == ("True", "Ready")
    assert (number(), sum_(), made()) == (1, 90, PREPARED["bytes"])
    # another revision of the same artifact has prepared nothing
    harness.change(maxModelLen=64)
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert (number(), sum_(), made()) == (1, 90, PREPARED["bytes"])


_BYTES = "encoder_prep_bytes_total"


def test_places_for_preparations_and_those_that_wait_for_one_are_shown() -> None:
    def shown() -> tuple[float | None, float | None]:
        return value("encoder_preps", state="running"), value("encoder_preps", state="queued")

    preps = PrepSlots(1)
    preps.reserve(KEY)
    preps.wait(NamespacedName("demo", "second"))
    preps.wait(NamespacedName("demo", "third"))
    assert shown() == (1, 2)
    preps.set_jobs(KEY, ["minilm-prep"])
    assert shown() == (1, 2)
    preps.set_jobs(KEY, [])
    preps.reserve(NamespacedName("demo", "second"))
    assert shown() == (1, 1)
    preps.set_jobs(NamespacedName("demo", "second"), [])
    preps.leave(NamespacedName("demo", "third"))
    assert shown() == (0, 0)
    preps.set_jobs(KEY, [], ["minilm-prep"])
    assert (shown(), value("encoder_preps", state="pending")) == ((0, 0), 1)


async def test_a_corrected_foreign_edit_is_counted() -> None:
    harness = Harness()
    deployments, services = (Growth("encoder_child_updates_total", kind=kind) for kind in ("Deployment", "Service"))
    # an object that is created is not one that another client has changed
    await harness.settle()
    assert (deployments(), services()) == (0, 0)
    edited = copy.deepcopy(harness.fake.of("deployments")[0])
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = "mine:1"
    harness.fake.put("deployments", edited)
    await harness.settle()
    assert (deployments(), services()) == (1, 0)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "ok"),
        (Conflict("somebody else wrote", status=409), "Conflict"),
        (NotLeader("another one leads"), "NotLeader"),
        (Unavailable("busy", status=503), "Unavailable"),
        (RequestRejected("forbidden", status=403), "RequestRejected"),
        (KeyError("a mistake of ours"), "InternalError"),
    ],
)
async def test_reconciles_are_counted_by_result(error: OperatorError | None, result: str) -> None:
    async def look(_: NamespacedName) -> None:
        if error is not None:
            raise error

    ended, looks = Growth("encoder_reconcile_total", result=result), Growth("encoder_reconcile_seconds_count")
    seconds = Growth("encoder_reconcile_seconds_sum")
    await WorkQueue(look, concurrency=1)._reconcile_key(KEY, _Entry())
    assert (ended(), looks()) == (1, 1)
    assert 0 < seconds() < 5


async def test_waiting_models_are_counted() -> None:
    hold, begun = asyncio.Event(), asyncio.Event()

    async def look(_: NamespacedName) -> None:
        begun.set()
        await hold.wait()

    async def reaches(number: float) -> None:
        while value("encoder_queue_depth") != before + number:
            await asyncio.sleep(0.01)

    before = value("encoder_queue_depth") or 0.0
    queue = WorkQueue(look, concurrency=1)
    for i in range(3):
        queue.enqueue(NamespacedName("demo", f"model-{i}"), after=0)
    await begun.wait()
    await asyncio.wait_for(reaches(2), 5)
    hold.set()
    await asyncio.wait_for(reaches(0), 5)
    hold.clear()
    for i in range(3):
        queue.enqueue(NamespacedName("demo", f"model-{i}"), after=0)
    await asyncio.wait_for(reaches(2), 5)
    # told to end while some wait
    await queue.close()
    assert value("encoder_queue_depth") == before


@pytest.mark.parametrize("code", ["200", "403", "409", "429", "500", "none"])
async def test_every_request_is_counted_by_its_answer(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("encoder_operator.client.client._RETRY_DELAYS", (0, 0, 0))

    def answer(request: httpx2.Request) -> httpx2.Response:
        if code == "none":
            raise httpx2.ConnectError("refused", request=request)
        return httpx2.Response(int(code), json={"items": [], "metadata": {"resourceVersion": "1"}, "code": int(code)})

    cluster = Client(config=FakeCluster.config(), transport=httpx2.MockTransport(answer))
    counted = Growth("encoder_api_requests_total", verb="list", kind="Pod", code=code)
    try:
        await cluster.list("Pod", "demo", {})
    except OperatorError:
        assert code != "200"
    # what is worth asking again at once is asked again at once, and each time counts
    assert counted() == (1 if code in ("200", "403") else 4)
