from __future__ import annotations

from collections.abc import Iterator

import pytest

from encoder_operator.metrics import metrics
from encoder_operator.metrics.condition_gauge import ConditionGauge
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, Harness, encoder_model, failing_report

Series = dict[tuple[str, str, str], float]


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """Other tests of this process share the registry."""
    metrics.MODEL_CONDITION.clear()
    yield
    metrics.MODEL_CONDITION.clear()


def exported() -> Series:
    """Return the values by namespace, model and condition."""
    (family,) = metrics.MODEL_CONDITION.collect()
    return {
        (found.labels["model_namespace"], found.labels["model"], found.labels["condition"]): found.value
        for found in family.samples
    }


def status(ready: str) -> Json:
    return {"conditions": [{"type": "Ready", "status": ready}, {"type": "Verified", "status": "True"}]}


async def test_a_model_is_exported_by_name_until_it_is_deleted() -> None:
    harness = Harness()
    harness.operator_settings = SETTINGS.model_copy(update={"condition_metric_max_models": 1})
    harness.reconciler = harness.operator()
    harness.parity = failing_report
    await harness.settle()
    assert exported() == {("demo", "minilm", "Ready"): 0, ("demo", "minilm", "Degraded"): 1}
    harness.fake.remove("encodermodels", "demo", encoder_model()["metadata"]["name"])
    await harness.reconcile()
    assert exported() == {}


async def test_it_is_off_by_default() -> None:
    await Harness().settle()
    assert exported() == {}


def test_above_the_limit_nothing_is_exported_and_below_it_all_are_again() -> None:
    gauge = ConditionGauge(2)
    keys = [NamespacedName("demo", name) for name in "abc"]
    for key in keys[:2]:
        gauge.set(key, status("True"))
    assert len(exported()) == 2
    gauge.set(keys[2], status("True"))
    assert exported() == {}
    gauge.remove(keys[2])
    for key in keys[:2]:
        gauge.set(key, status("False"))
    assert exported() == {("demo", "a", "Ready"): 0, ("demo", "b", "Ready"): 0}
