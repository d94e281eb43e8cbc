from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected
from encoder_operator.naming import NamespacedName
from encoder_operator.state.snapshot import SnapshotReader
from encoder_operator.tests import harness
from encoder_operator.tests.fake_cluster import FakeCluster


class Counting(FakeCluster):
    """Notes what is asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.rpartition("/")[2]
        self.asked.append(path)
        if path == self.refuses:
            return httpx2.Response(
                403, json={"message": "no", "code": 403}, headers={"Content-Type": "application/json"}
            )
        await asyncio.sleep(0)
        return await super().handle_async_request(request)


@pytest.fixture
def fake() -> Counting:
    found = Counting()
    for i in range(30):
        live: Any = harness.encoder_model()
        live["metadata"] = {"name": f"m{i}", "namespace": "demo"}
        found.put("encodermodels", live)
        job = {"name": f"m{i}-x", "namespace": "demo", "labels": {"encoders.dev/model": f"m{i}"}}
        found.put("jobs", {"metadata": job})
    return found


def reader(fake: Counting) -> SnapshotReader:
    return SnapshotReader(Client(config=FakeCluster.config(), transport=fake))


async def test_many_models_are_read_by_few_lists_and_each_gets_its_own(fake: Counting) -> None:
    keys = [NamespacedName("demo", f"m{i}") for i in range(30)]
    found = await asyncio.gather(*map(reader(fake).read, keys))
    assert [view and [job["metadata"]["name"] for job in view.children["Job"]] for view in found] == [
        [f"m{i}-x"] for i in range(30)
    ]
    assert fake.asked.count("jobs") == fake.asked.count("pods") == 2


async def test_jobs_are_read_before_their_pods(fake: Counting) -> None:
    await reader(fake).read(NamespacedName("demo", "m1"))
    assert fake.asked.index("jobs") < fake.asked.index("pods")


async def test_a_model_that_is_gone_is_none_and_harms_no_other(fake: Counting) -> None:
    one = reader(fake)
    gone, there = await asyncio.gather(
        one.read(NamespacedName("demo", "nobody")), one.read(NamespacedName("demo", "m1"))
    )
    assert gone is None
    assert there is not None


async def test_an_error_reaches_every_caller_of_the_batch_and_no_later_one(fake: Counting) -> None:
    one = reader(fake)
    fake.refuses = "pods"
    found = await asyncio.gather(*(one.read(NamespacedName("demo", f"m{i}")) for i in range(3)), return_exceptions=True)
    assert all(isinstance(error, RequestRejected) for error in found)
    fake.refuses = ""
    assert await one.read(NamespacedName("demo", "m1")) is not None


async def test_models_of_many_namespaces_are_listed_once_for_the_cluster() -> None:
    fake = Counting()
    keys = [NamespacedName(f"n{i}", "same") for i in range(8)]
    for key in keys:
        live: Any = harness.encoder_model()
        live["metadata"] = {"name": key.name, "namespace": key.namespace}
        fake.put("encodermodels", live)
    found = await asyncio.gather(*map(reader(fake).read, keys))
    assert [view and view.live["metadata"]["namespace"] for view in found] == [key.namespace for key in keys]
    assert fake.asked.count("pods") == 1
