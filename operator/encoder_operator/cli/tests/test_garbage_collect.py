"""Which artifacts are kept, and on which claims a Job collects the others."""

from __future__ import annotations

import copy
import itertools
import json
import tracemalloc
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import LabelSelector
from encoder_operator.cli import garbage_collect
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError, RequestRejected
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import garbage_collection_job
from encoder_operator.resources.garbage_collection_job import CollectionTarget
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS, Harness
from encoder_plugins.__main__ import build_parser

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
NAMESPACE = "demo"


def arguments(job: Json) -> list[str]:
    found: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def kept(job: Json) -> set[str]:
    found = arguments(job)
    return {value for name, value in itertools.pairwise(found) if name == "--keep"}


async def collected(harness: Harness, now: datetime = NOW, settings: Settings = SETTINGS) -> list[Json]:
    before = {job["metadata"]["name"] for job in harness.fake.of("jobs", component="gc")}
    cluster = Client(config=FakeCluster.config(), transport=harness.fake)
    assert await garbage_collect.run(cluster, settings, now) == 0
    return [job for job in harness.fake.of("jobs", component="gc") if job["metadata"]["name"] not in before]


def keys(harness: Harness) -> set[str]:
    return {
        record["data"]["pinned"]["artifact"]["key"]
        for record in harness.fake.of("controllerrevisions", component="revision")
    }


async def test_every_artifact_that_a_revision_pins_is_kept() -> None:
    harness = Harness()
    await harness.settle()
    first = keys(harness)
    harness.edit(lambda live: live["spec"].update(prepare={"allowPickle": True}))
    await harness.settle()
    (job,) = await collected(harness)
    assert keys(harness) > first
    assert kept(job) >= keys(harness)


async def test_an_artifact_that_nothing_mentions_is_not_kept() -> None:
    harness = Harness()
    await harness.settle()
    (job,) = await collected(harness)
    assert "f" * 64 not in kept(job)
    harness.edit(lambda live: live["metadata"].setdefault("annotations", {}).update(note="key " + "f" * 64))
    finish(harness, job)
    (job,) = await collected(harness, NOW + timedelta(days=1))
    assert "f" * 64 in kept(job)


def finish(harness: Harness, job: Json) -> None:
    ended = copy.deepcopy(job)
    ended["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    harness.fake.put("jobs", ended)


async def test_what_an_earlier_job_kept_is_not_kept_for_that() -> None:
    harness = Harness()
    await harness.settle()
    harness.edit(lambda live: live["metadata"].setdefault("annotations", {}).update(note="f" * 64))
    (job,) = await collected(harness)
    finish(harness, job)
    harness.edit(lambda live: live["metadata"]["annotations"].clear())
    (job,) = await collected(harness, NOW + timedelta(minutes=5))
    assert "f" * 64 not in kept(job)


async def test_one_job_at_a_time_per_pvc() -> None:
    harness = Harness()
    await harness.settle()
    (job,) = await collected(harness)
    assert await collected(harness, NOW + timedelta(hours=1)) == []
    finish(harness, job)
    assert len(await collected(harness, NOW + timedelta(hours=2))) == 1


async def test_a_pvc_without_artifacts_is_not_mounted() -> None:
    # the first pod that mounts it decides on which node its volume is made
    assert await collected(Harness()) == []


async def test_the_pvc_of_a_deleted_model_is_left_alone() -> None:
    harness = Harness()
    await harness.settle()
    records = copy.deepcopy(harness.fake.of("controllerrevisions"))
    harness.fake.remove(naming.PLURAL, NAMESPACE, harness.live["metadata"]["name"])
    for record in records:
        # not yet gone
        harness.fake.put("controllerrevisions", record)
    assert await collected(harness) == []


async def test_a_failing_list_starts_nothing() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.fail_next = [(500, {})] * 20  # a busy API server is asked again
    cluster = Client(config=FakeCluster.config(), transport=harness.fake)
    with pytest.raises(ApiServerError):
        await garbage_collect.run(cluster, SETTINGS, NOW)
    assert harness.fake.of("jobs", component="gc") == []


@pytest.mark.parametrize(
    ("message", "code"),
    [("unable to create new content in namespace demo because it is being terminated", 0), ("exceeded quota", 1)],
)
async def test_a_job_that_is_refused_is_a_failure_unless_the_namespace_is_being_deleted(
    message: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: Client, manifest: Json) -> None:
        raise RequestRejected(f"apply Job: {message}", status=403)

    harness = Harness()
    await harness.settle()
    monkeypatch.setattr(Client, "apply", refuse)
    cluster = Client(config=FakeCluster.config(), transport=harness.fake)
    assert await garbage_collect.run(cluster, SETTINGS, NOW) == code


async def test_the_job_is_a_restricted_pod_and_its_command_is_understood() -> None:
    harness = Harness()
    await harness.settle()
    (job,) = await collected(harness)
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["image"] == SETTINGS.images.operator
    # it is no model's child: nothing wakes for it, and no Deployment counts its pod
    assert naming.MODEL not in job["metadata"]["labels"]
    parsed = build_parser("collect").parse_args(arguments(job))
    assert set(parsed.keep) == kept(job)
    assert datetime.fromisoformat(parsed.listed_at) == NOW


async def test_artifacts_of_a_namespace_that_is_not_served_are_kept() -> None:
    harness = Harness()
    await harness.settle()
    selector = LabelSelector(match_labels={"encoders": "yes"})
    settings = SETTINGS.model_copy(update={"namespace_selector": selector})
    harness.fake.put("namespaces", {"metadata": {"name": NAMESPACE}})
    assert await collected(harness, settings=settings) == []
    harness.fake.put("namespaces", {"metadata": {"name": NAMESPACE, "labels": {"encoders": "yes"}}})
    (job,) = await collected(harness, settings=settings)
    assert keys(harness) <= kept(job)


def test_claims_of_one_name_in_two_namespaces_are_two() -> None:
    def record(namespace: str, key: str) -> Json:
        labels = {naming.MODEL: "m", naming.COMPONENT: "revision"}
        pinned = {"claim": "shared", "artifact": {"key": key}}
        return {"metadata": {"namespace": namespace, "name": "r", "labels": labels}, "data": {"pinned": pinned}}

    models = [{"metadata": {"namespace": namespace, "name": "m"}} for namespace in ("a", "b")]
    found = garbage_collect.References()
    for live in models:
        found.add_model(live)
    found.add_other(record("a", "1" * 64))
    found.add_other(record("b", "2" * 64))
    assert found.targets() == [
        CollectionTarget(namespace="a", name="shared", models=("m",), keep=("1" * 64,)),
        CollectionTarget(namespace="b", name="shared", models=("m",), keep=("2" * 64,)),
    ]


class Pages(httpx2.AsyncBaseTransport):
    """An API server with more revisions than the command may hold; it builds each page when it is requested."""

    def __init__(self, revisions: int, size: int) -> None:
        self.revisions, self.size, self.keys = revisions, size, set[str]()
        self.created: list[Json] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PATCH":
            self.created.append(json.loads(request.content))
            return httpx2.Response(200, json=self.created[-1])
        items: list[Json] = []
        after = ""
        if request.url.path.endswith("/encodermodels"):
            items = [{"metadata": {"namespace": NAMESPACE, "name": "minilm"}}]
        elif request.url.path.endswith("/controllerrevisions"):
            begin, limit = int(request.url.params.get("continue", 0)), int(request.url.params["limit"])
            items = [self._revision(number) for number in range(begin, min(begin + limit, self.revisions))]
            after = str(begin + limit) if begin + limit < self.revisions else ""
        return httpx2.Response(200, json={"items": items, "metadata": {"continue": after, "resourceVersion": "1"}})

    def _revision(self, number: int) -> Json:
        key = f"{number:064x}"
        self.keys.add(key)
        pinned = {"claim": "artifacts", "artifact": {"key": key}}
        meta = {"namespace": NAMESPACE, "name": f"r{number}", "labels": {naming.MODEL: "minilm"}}
        return {"metadata": meta, "data": {"pinned": pinned, "template": {"note": "x" * self.size}}}


async def test_memory_does_not_grow_with_the_objects() -> None:
    server = Pages(revisions=2000, size=20_000)
    cluster = Client(config=FakeCluster.config(), transport=server)
    tracemalloc.start()
    try:
        assert await garbage_collect.run(cluster, SETTINGS, NOW) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await cluster.close()
    (job,) = server.created
    assert kept(job) == server.keys
    # the objects have 40 MB
    assert peak < 15e6


def test_the_longest_names_fit() -> None:
    claim = CollectionTarget(namespace="n" * 63, name="c" * 253, models=("m" * 40,), keep=("1" * 64,) * 1000)
    job = garbage_collection_job.build(claim, NOW, SETTINGS)
    assert len(job["metadata"]["name"]) <= 63
    assert all(len(value) <= 63 for value in job["metadata"]["labels"].values())
