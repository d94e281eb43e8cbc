from __future__ import annotations

import asyncio
import gc
import itertools
from typing import Any

import httpx2
import pytest

from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected
from encoder_operator.naming import NamespacedName
from encoder_operator.state.snapshot import Snapshot, SnapshotReader
from encoder_operator.tests import harness
from encoder_operator.tests.fake_cluster import FakeCluster


class Counting(FakeCluster):
    """Notes what is requested, in order, and how many batches there are at each request; answers some paths by a status of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.paths: list[str] = []
        self.refuses: dict[str, int] = {}
        self.batches: list[int] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        name = path.rpartition("/")[2]
        self.asked.append(name)
        self.paths.append(path)
        code = next((code for end, code in self.refuses.items() if path.endswith(f"/{end}")), None)
        if code is not None:
            return httpx2.Response(
                code, json={"message": "no", "code": code}, headers={"Content-Type": "application/json"}
            )
        self.batches.append(sum(task.get_name().startswith("read ") for task in asyncio.all_tasks()))
        await asyncio.sleep(0)
        return await super().handle_async_request(request)

    def model(self, name: str, namespace: str, **changes: Any) -> NamespacedName:
        """Store a model; return its key."""
        live: Any = harness.with_fields(changes)
        live["metadata"] = {"name": name, "namespace": namespace}
        self.put("encodermodels", live)
        return NamespacedName(namespace, name)


@pytest.fixture
def fake() -> Counting:
    found = Counting()
    for i in range(30):
        found.model(f"m{i}", "demo")
        job = {"name": f"m{i}-x", "namespace": "demo", "labels": {"encoders.dev/model": f"m{i}"}}
        found.put("jobs", {"metadata": job})
    return found


def reader(fake: FakeCluster, **options: Any) -> SnapshotReader:
    return SnapshotReader(Client(config=FakeCluster.config(), transport=fake), **options)


async def view(fake: FakeCluster, key: NamespacedName) -> Snapshot:
    found = await reader(fake).read(key)
    assert found is not None
    return found


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
    fake.refuses = {"pods": 403}
    found = await asyncio.gather(*(one.read(NamespacedName("demo", f"m{i}")) for i in range(3)), return_exceptions=True)
    assert all(isinstance(error, RequestRejected) for error in found)
    fake.refuses = {}
    assert await one.read(NamespacedName("demo", "m1")) is not None


@pytest.mark.parametrize(
    ("namespaces", "namespaced", "lists"), [(1, False, 1), (4, False, 4), (5, False, 1), (8, False, 1), (8, True, 8)]
)
async def test_models_of_many_namespaces_are_listed_once_for_the_cluster(
    namespaces: int, namespaced: bool, lists: int
) -> None:
    fake = Counting()
    keys = [fake.model("same", f"n{i}") for i in range(namespaces)]
    pod = {"name": "pod", "namespace": "n0", "labels": {"encoders.dev/model": "same"}}
    fake.put("pods", {"metadata": pod})
    fake.put("replicasets", {"metadata": {**pod, "name": "set"}})
    # the whole cluster may be listed unless it is said that it may not
    read = (reader(fake, namespaced=True) if namespaced else reader(fake)).read
    found = [view for view in await asyncio.gather(*map(read, keys)) if view]
    assert [view.live["metadata"]["namespace"] for view in found] == [key.namespace for key in keys]
    for kind, name in (("Pod", "pod"), ("ReplicaSet", "set")):
        named = [[child["metadata"]["name"] for child in view.children[kind]] for view in found]
        assert named == [[name], *[[]] * (namespaces - 1)]
    assert fake.asked.count("pods") == fake.asked.count("replicasets") == lists


async def test_at_most_two_batches_are_read_at_a_time() -> None:
    fake = Counting()
    keys = [fake.model(f"m{i}", "demo") for i in range(64)]
    await asyncio.gather(*map(reader(fake).read, keys))
    assert fake.asked.count("jobs") == 4
    assert max(fake.batches) == 2


async def test_two_callers_of_one_model_share_a_read(fake: Counting) -> None:
    one, key = reader(fake), NamespacedName("demo", "m1")
    first = asyncio.create_task(one.read(key))
    second = asyncio.create_task(one.read(key))
    done, _ = await asyncio.wait([first, second], timeout=30)
    assert done == {first, second}
    assert first.result() is second.result() is not None
    assert fake.asked.count("jobs") == 1


async def test_a_rejection_in_one_namespace_fails_only_its_models() -> None:
    fake = Counting()
    keys = [fake.model("same", "open"), fake.model("same", "closed")]
    fake.refuses = {"namespaces/closed/pods": 403}
    found = await asyncio.gather(*map(reader(fake).read, keys), return_exceptions=True)
    assert isinstance(found[0], Snapshot)
    assert isinstance(found[1], RequestRejected)


async def test_a_cancelled_batch_is_an_error_to_its_callers_and_a_cancelled_caller_none_to_the_batch(
    fake: Counting,
) -> None:
    one, reports = reader(fake), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    keys = [NamespacedName("demo", "m1"), NamespacedName("demo", "m2")]
    callers = [asyncio.create_task(one.read(key)) for key in keys]
    while not fake.asked:
        await asyncio.sleep(0)
    callers[0].cancel()
    batch = next(task for task in asyncio.all_tasks() if task.get_name() == "read 2 models")
    batch.cancel()
    await asyncio.wait([*callers, batch], timeout=30)
    assert batch.cancelled()
    assert callers[0].cancelled()
    assert isinstance(callers[1].exception(), RuntimeError)
    del batch, callers
    gc.collect()
    assert reports == []
    assert await one.read(keys[0]) is not None


async def test_an_error_of_a_batch_is_reported_to_its_callers_alone() -> None:
    class Broken(Counting):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.path.endswith("/pods"):
                raise ValueError("broken")
            return await super().handle_async_request(request)

    fake, reports = Broken(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    with pytest.raises(ValueError, match="broken"):
        await reader(fake).read(fake.model("m", "demo"))
    # a turn of the event loop, after which nothing refers to the batch's task: collected, it would be reported
    await asyncio.sleep(0)
    gc.collect()
    assert reports == []


async def test_a_model_that_is_being_deleted_is_none() -> None:
    fake = Counting()
    key = fake.model("m", "demo")
    fake.objects["encodermodels", "demo", "m"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await reader(fake).read(key) is None


@pytest.mark.parametrize(
    ("changes", "requested"),
    [
        ({}, {"deployments", "services"}),
        ({"spec.serving": {}}, {"deployments", "services"}),
        ({"spec.serving.replicas": 2}, {"deployments", "services", "poddisruptionbudgets"}),
        ({"spec.network": {"networkPolicy": {}}}, {"deployments", "services", "networkpolicies"}),
        ({"spec.network": {"httpRoute": {}}}, {"deployments", "services", "httproutes"}),
    ],
)
async def test_an_object_of_the_models_name_without_its_label_is_read_if_the_spec_requests_one(
    changes: dict[str, Any], requested: set[str]
) -> None:
    fake = Counting()
    fake.gateway_api = True
    key = fake.model("m", "demo", **changes)
    plurals = ("deployments", "services", "networkpolicies", "poddisruptionbudgets", "httproutes")
    for plural in plurals:
        fake.put(plural, {"metadata": {"name": "m", "namespace": "demo"}})
    found = await view(fake, key)
    assert {path.split("/")[-2] for path in fake.paths if path.endswith("/m")} - {"encodermodels"} == requested
    assert len(found.namesakes) == len(requested)
    for plural in plurals:
        fake.objects[plural, "demo", "m"]["metadata"]["labels"] = {"encoders.dev/model": "m"}
    fake.paths.clear()
    found = await view(fake, key)
    assert [path for path in fake.paths if path.endswith("/m")] == [
        "/apis/encoders.dev/v1alpha1/namespaces/demo/encodermodels/m"
    ]
    assert set(found.namesakes) == {
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "HTTPRoute",
    }


async def test_an_object_of_another_name_with_the_models_label_is_no_namesake() -> None:
    fake = Counting()
    key = fake.model("m", "demo")
    fake.put("deployments", {"metadata": {"name": "a", "namespace": "demo", "labels": {"encoders.dev/model": "m"}}})
    found = await view(fake, key)
    assert ([child["metadata"]["name"] for child in found.children["Deployment"]], found.namesakes) == (["a"], {})


async def test_a_cluster_without_the_gateway_api_gets_no_request_for_routes() -> None:
    fake = Counting()
    found = await view(fake, fake.model("m", "demo", **{"spec.network": {"httpRoute": {}}}))
    assert not found.gateway_api
    assert "HTTPRoute" not in found.children
    assert "httproutes" not in fake.asked


async def test_the_gateway_api_is_looked_for_every_five_minutes() -> None:
    fake, now = Counting(), [0.0]
    key = fake.model("m", "demo")
    one = reader(fake, clock=lambda: now[0])
    seen: list[object] = []
    lists: list[int] = []
    for now[0], there in ((0.0, False), (300.0, True), (301.0, True), (601.0, False), (602.0, False), (903.0, True)):
        fake.gateway_api = there
        found = await one.read(key)
        seen.append(found and found.gateway_api)
        lists.append(fake.asked.count("httproutes"))
    # at 601 s the list finds that the Gateway API is gone; it is looked for again 300 s later
    assert seen == [False, False, True, False, False, True]
    assert fake.asked.count("v1") == 3
    assert lists[4] == lists[3]


async def test_routes_that_cannot_be_listed_are_an_error() -> None:
    fake = Counting()
    fake.gateway_api = True
    key = fake.model("m", "demo")
    fake.refuses = {"httproutes": 403}
    with pytest.raises(RequestRejected):
        await reader(fake).read(key)


@pytest.mark.parametrize(
    ("storage", "name"),
    [({"storage.claimName": "shared"}, "shared"), ({"storage": None}, "m-artifacts"), ({}, "m-artifacts")],
)
async def test_the_pvc_is_the_one_that_the_spec_names(storage: dict[str, Any], name: str) -> None:
    fake = Counting()
    key = fake.model("m", "demo", **{f"spec.{path}": value for path, value in storage.items()})
    assert (await view(fake, key)).pvc is None
    fake.put("persistentvolumeclaims", {"metadata": {"name": name, "namespace": "demo"}})
    found = await view(fake, key)
    assert found.pvc
    assert found.pvc["metadata"]["name"] == name


async def test_the_version_of_a_kind_is_that_of_its_oldest_list() -> None:
    class Versions(Counting):
        def _answer(self, code: int, body: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
            if body and "items" in body:
                body["metadata"]["resourceVersion"] = next(versions)
            return super()._answer(code, body, headers)

    # each kind is listed in two namespaces
    fake, versions = Versions(), itertools.cycle(["9", "10"])
    keys = [fake.model("m", "a"), fake.model("m", "b")]
    found = await asyncio.gather(*map(reader(fake).read, keys))
    assert [view and view.versions["Pod"] for view in found] == ["9", "9"]
    assert found[1]
    assert found[1].versions["EncoderModel"] == found[1].live["metadata"]["resourceVersion"]
