"""What the operator counts: names by Prometheus' conventions, no series per model, and numbers that alerts can rest on."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from encoder_operator import metrics
from encoder_operator.reconcile import Reconciler
from encoder_operator.tests.world import PLUGIN, World, model
from encoder_operator.tests.world import passes as equal
from encoder_operator.wakeups import Key, WakeUps, _Entry
from encoder_plugins import catalog

# values come from closed sets: our own words, kinds and verbs, and the answers of HTTP
LABELS = {"result", "verb", "kind", "code", "phase", "plugin", "state"}


def collected() -> list[Metric]:
    return list(metrics.REGISTRY.collect())


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(s.name, tuple(sorted(s.labels.items()))) for found in collected() for s in found.samples}


def test_names_say_the_unit_and_what_is_counted() -> None:
    for found in collected():
        assert found.name.startswith("encoder_"), found.name
        assert found.documentation.endswith("."), found.name
        names = {sample.name for sample in found.samples if not sample.name.endswith("_created")}
        match found.type:
            case "counter":
                assert names <= {f"{found.name}_total"}, names
            case "histogram":
                assert found.name.endswith("_seconds"), found.name
            case "gauge":
                assert not found.name.endswith(("_total", "_count", "_sum")), found.name
            case other:
                raise AssertionError(f"{found.name} is a {other}")


def test_every_name_is_in_the_documentation() -> None:
    said = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    assert [found.name for found in collected() if f"`{found.name}" not in said] == []


async def test_models_and_namespaces_make_no_series() -> None:
    async def looked(name: str, namespace: str) -> None:
        world = World()
        manifest = copy.deepcopy(model())
        manifest["metadata"] |= {"name": name, "namespace": namespace}
        world.fake.put("encodermodels", manifest)
        wakeups = WakeUps(lambda key: world.reconciler.reconcile(*key), concurrency=1)
        for key in (Key("demo", "minilm"), Key(namespace, name)):
            await wakeups._looked(key, _Entry())

    await looked("first", "demo")
    before = series()
    for number in range(20):
        await looked(f"model-{number}", f"team-{number}")
    assert series() == before
    used = {label for _, labels in before for label, _ in labels} - {"le"}
    assert used <= LABELS


def test_what_alerts_watch_is_there_at_zero_before_anything_happens() -> None:
    # `increase` of a series that appears with its first failure is 0, and no alert would fire
    metrics.begin(catalog.plugins())
    for plugin in catalog.plugins():
        for result in ("Passed", "Failed", "Inconclusive"):
            assert value("encoder_parity_results_total", plugin=plugin, result=result) is not None, (plugin, result)
    for result in ("ok", "Bug"):
        assert value("encoder_reconcile_total", result=result) is not None


@pytest.mark.parametrize("operators", [1, 2], ids=["one-operator", "restarted-at-every-look"])
async def test_each_comparison_is_counted_once(operators: int) -> None:
    def counted() -> dict[str, float]:
        results = ("Passed", "Failed", "Inconclusive")
        return {r: value("encoder_parity_results_total", plugin=PLUGIN, result=r) or 0.0 for r in results}

    metrics.begin([PLUGIN])
    world = World()
    before = counted()

    async def settle() -> None:
        for _ in range(12):
            if operators == 2:
                world.reconciler = world.operator()
            assert isinstance(world.reconciler, Reconciler)
            await world.look()
            world.jobs()
            world.deployment()

    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await settle()
    for job in world.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    world.parity = equal
    await settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert {r: n - before[r] for r, n in counted().items()} == {"Passed": 1.0, "Failed": 0.0, "Inconclusive": 1.0}
