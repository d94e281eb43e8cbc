from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected, Unavailable
from encoder_operator.controller.namespaces import Namespaces
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS

TWO = SETTINGS.model_copy(update={"namespaces": ["a", "b"], "lease_namespace": "operators", "lease_name": "operator"})


def unreadable() -> dict[str, float]:
    return {name: metrics.NAMESPACE_UNREADABLE.labels(name)._value.get() for name in TWO.namespaces}


async def test_a_rejected_namespace_is_reported_once_and_the_others_are_read() -> None:
    fake = FakeCluster()
    namespaces = Namespaces(Client(config=FakeCluster.config(), transport=fake), TWO)
    assert unreadable() == {"a": 0, "b": 0}
    rejected = {"a"}

    async def read(name: str) -> str:
        if name in rejected:
            # an admission policy may say whatever it likes
            raise RequestRejected(f"pods is forbidden in {name}{' or' * 1000}", status=403)
        return name

    for _ in range(3):
        assert await namespaces.read(read) == ["b"]
    assert (set(namespaces.unreadable), unreadable()) == ({"a"}, {"a": 1, "b": 0})
    (event,) = fake.of("events")
    assert (event["metadata"]["namespace"], event["involvedObject"]["name"]) == ("operators", "operator")
    assert (event["type"], event["reason"]) == ("Warning", "NamespaceUnreadable")
    assert "Namespace a cannot be read" in event["message"]
    assert "pods is forbidden in a" in event["message"]
    # the API server rejects an Event with a longer message
    assert len(event["message"]) == 1024
    rejected.clear()
    assert await namespaces.read(read) == ["a", "b"]
    assert (set(namespaces.unreadable), unreadable()) == (set(), {"a": 0, "b": 0})
    assert sorted(found["reason"] for found in fake.of("events")) == ["NamespaceReadable", "NamespaceUnreadable"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        # an API server that does not answer says nothing about a namespace
        (TWO, Unavailable("away")),
        (SETTINGS, RequestRejected("forbidden", status=403)),
    ],
    ids=["no-answer", "all-namespaces"],
)
async def test_what_is_not_about_one_namespace_is_raised(settings: Any, error: Exception) -> None:
    fake = FakeCluster()
    namespaces = Namespaces(Client(config=FakeCluster.config(), transport=fake), settings)

    async def read(name: str) -> str:
        raise error

    with pytest.raises(type(error)):
        await namespaces.read(read)
    assert namespaces.unreadable == frozenset()
    assert fake.of("events") == []


def test_prep_slots_of_a_namespace_that_was_not_read_stay_taken() -> None:
    slots = PrepSlots(3)

    def job(namespace: str) -> Any:
        return {"metadata": {"namespace": namespace, "name": "j", "labels": {"encoders.dev/model": "m"}}}

    slots.reset([job("a"), job("b")])
    slots.reset([], {"a"})
    assert slots.has_job(NamespacedName("a", "m"))
    assert not slots.has_job(NamespacedName("b", "m"))
