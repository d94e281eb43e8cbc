"""Namespaces that are selected by their labels: which ones are served, and what becomes of the models of one that changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from encoder_operator.api.v1alpha1 import LabelSelector
from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected
from encoder_operator.controller.namespaces import Namespaces, SelectedNamespaces, served_namespaces
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.manager.manager import reconcile_if_served
from encoder_operator.metrics.phase_gauge import PhaseGauge
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS, Harness, encoder_model

SELECTING = SETTINGS.model_copy(update={"namespace_selector": LabelSelector(match_labels={"encoders": "yes"})})
MATCHING = {"encoders": "yes"}
DEMO = NamespacedName("demo", "minilm")


class Cluster:
    """Some namespaces with a model in each, and the calls about those that change."""

    def __init__(self, **labels: dict[str, str]) -> None:
        self.fake = FakeCluster()
        for name, found in labels.items():
            self.label(name, found)
            model = encoder_model()
            self.fake.put("encodermodels", model | {"metadata": {"name": "minilm", "namespace": name}})
        self.client = Client(config=FakeCluster.config(), transport=self.fake)
        self.namespaces = SelectedNamespaces(self.client, SELECTING)
        self.calls: list[Any] = []
        self.namespaces.on_change(self.calls.append, self.calls.append)

    def label(self, name: str, labels: dict[str, str]) -> Any:
        """Set the labels of a namespace; returns what an event about it contains."""
        return self.fake.put("namespaces", {"metadata": {"name": name, "labels": labels}})["metadata"]

    async def event(self, name: str, labels: dict[str, str]) -> None:
        await self.namespaces.record_event(self.label(name, labels), deleted=False)

    async def read(self) -> list[str]:
        """Return for which names the namespaces are read."""

        async def name(found: str) -> str:
            return found

        return await self.namespaces.read(name)

    def since(self) -> list[Any]:
        """Return the calls since the last time."""
        found, self.calls[:] = list(self.calls), []
        return found


def test_namespaces_are_selected_only_if_the_setting_is_made() -> None:
    client = Client(config=FakeCluster.config(), transport=FakeCluster())
    assert type(served_namespaces(client, SETTINGS)) is Namespaces
    assert served_namespaces(client, SETTINGS).serves("demo")
    assert type(served_namespaces(client, SELECTING)) is SelectedNamespaces


async def test_the_first_read_fills_the_set_and_enqueues_nothing() -> None:
    cluster = Cluster(a=MATCHING, b={}, c={"encoders": "no"})
    assert not cluster.namespaces.serves("a")
    # one list for all namespaces
    assert await cluster.read() == ["*"]
    assert cluster.namespaces.served == {"a"}
    # the watch of models begins with all of them
    assert cluster.since() == []


async def test_an_event_starts_or_ends_serving_a_namespace() -> None:
    cluster = Cluster(a=MATCHING, b={})
    await cluster.read()
    await cluster.event("b", MATCHING)
    assert cluster.since() == [("b", "minilm")]
    await cluster.event("b", {**MATCHING, "other": "label"})
    assert cluster.since() == []
    await cluster.event("a", {})
    assert (cluster.since(), cluster.namespaces.served) == (["a"], frozenset({"b"}))
    await cluster.event("a", {"other": "label"})
    assert cluster.since() == []
    await cluster.namespaces.record_event(cluster.label("b", MATCHING), deleted=True)
    assert (cluster.since(), cluster.namespaces.served) == (["b"], frozenset())


async def test_a_read_finds_what_the_watch_has_not_delivered() -> None:
    cluster = Cluster(a=MATCHING, b={}, c=MATCHING)
    await cluster.read()
    cluster.label("a", {})
    cluster.label("b", MATCHING)
    cluster.fake.remove("namespaces", "", "c")
    await cluster.read()
    assert cluster.namespaces.served == {"b"}
    assert sorted(map(str, cluster.since())) == sorted(["a", "c", str(NamespacedName("b", "minilm"))])


async def test_what_is_older_than_the_last_event_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(a=MATCHING, b={}, c=MATCHING)
    await cluster.read()
    old = cluster.label("a", MATCHING)
    list_metadata = cluster.client.list_metadata

    async def slowly(kind: str, namespace: str | None, *more: str) -> Any:
        found = await list_metadata(kind, namespace, *more)
        if kind == "Namespace":
            # while the answer is on its way
            await cluster.event("a", {})
            await cluster.event("new", MATCHING)
            await cluster.namespaces.record_event({**old, "name": "c"}, deleted=True)
            await cluster.event("c", MATCHING)
        return found

    monkeypatch.setattr(cluster.client, "list_metadata", slowly)
    await cluster.namespaces.refresh()
    await cluster.namespaces.record_event(old, deleted=False)
    assert cluster.namespaces.served == {"new", "c"}


async def test_a_namespace_whose_models_cannot_be_listed_is_served_and_left_to_the_resync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(b={})
    await cluster.read()
    cluster.fake.forbidden = {"GET encodermodels"}
    with capture_logs() as logs:
        await cluster.event("b", MATCHING)
    assert cluster.namespaces.serves("b")
    assert cluster.since() == []
    assert "the models of a namespace cannot be listed" in [entry["event"] for entry in logs]


async def test_the_right_to_list_namespaces_is_required() -> None:
    cluster = Cluster(a=MATCHING)
    cluster.fake.forbidden = {"GET namespaces"}
    with pytest.raises(RequestRejected, match="namespaces is forbidden"):
        await cluster.read()


class Served(Namespaces):
    """Serves the namespaces of a set."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def serves(self, name: str) -> bool:
        return name in self.names


async def test_a_model_of_a_namespace_that_is_not_served_is_not_read() -> None:
    harness = Harness()
    assert await reconcile_if_served(harness.reconciler, Served("other"), DEMO) is None
    assert "status" not in harness.live
    await reconcile_if_served(harness.reconciler, Served("demo"), DEMO)
    assert "status" in harness.live


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_reconcile_records_after_its_namespace_ceased_is_forgotten(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, served = Harness(), Served("demo")
    progress, slots, phases = WatchProgress(), PrepSlots(1), PhaseGauge()
    client = Client(config=FakeCluster.config(), transport=harness.fake)
    reconciler = Reconciler(client, SETTINGS, watch_progress=progress, prep_slots=slots, phase_gauge=phases)
    reconcile = reconciler.reconcile

    async def slowly(*key: str) -> float | None:
        served.names.clear()
        found = await reconcile(*key)
        if fails:
            raise RequestRejected("no", status=403)
        assert (progress.models, phases.models, slots.has_job(DEMO)) == (frozenset({DEMO}), frozenset({DEMO}), True)
        return found

    monkeypatch.setattr(reconciler, "reconcile", slowly)
    if fails:
        with pytest.raises(RequestRejected):
            await reconcile_if_served(reconciler, served, DEMO)
    else:
        assert await reconcile_if_served(reconciler, served, DEMO) is None
    assert (progress.models, phases.models, slots.has_job(DEMO)) == (frozenset(), frozenset(), False)


async def test_refreshes_at_the_same_time_end_with_the_newest_labels() -> None:
    cluster = Cluster(a=MATCHING, b={})
    await asyncio.gather(cluster.read(), cluster.read(), cluster.event("b", MATCHING))
    assert cluster.namespaces.served == {"a", "b"}
