from __future__ import annotations

import contextlib
import copy
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from encoder_operator.client.client import Client
from encoder_operator.client.errors import Conflict, RequestRejected, Unavailable
from encoder_operator.tests.fake_cluster import FakeCluster

EM = {"group": "encoders.dev", "version": "v1alpha1", "kind": "EncoderModel"}


def answering(
    code: int, headers: dict[str, str] | None = None, content: bytes = b'{"message": "m", "code": %d}'
) -> Client:
    body = content % code if b"%d" in content else content

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(code, headers={"Content-Type": "application/json"} | (headers or {}), content=body)

    return Client(config=FakeCluster.config(), transport=httpx2.MockTransport(answer))


@pytest.mark.parametrize("code", [401, 408, 409, 410, 429, 500, 503])
async def test_what_may_pass_by_itself_is_unavailable(code: int) -> None:
    with pytest.raises(Unavailable) as caught:
        await answering(code).list("Pod", "demo", {})
    assert caught.value.status == code


@pytest.mark.parametrize("code", [400, 403, 404, 422])
async def test_what_asking_again_does_not_change_is_refused(code: int) -> None:
    with pytest.raises(RequestRejected, match="list Pod: m"):
        await answering(code).list("Pod", "demo", {})


async def test_a_field_of_the_wrong_type_is_refused_although_the_api_server_fails() -> None:
    words = "failed to create typed patch object (demo/m; apps/v1, Kind=Deployment): .spec.a: expected string, got 1"
    client = answering(500, content=json.dumps({"message": words, "code": 500}).encode())
    with pytest.raises(RequestRejected, match="expected string"):
        await client.apply({"kind": "Deployment", "metadata": {"name": "m", "namespace": "demo"}})


@pytest.mark.parametrize(
    "words",
    [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2129999 vs. 2097152)",
    ],
)
async def test_an_object_that_is_too_large_is_refused_although_the_api_server_fails(words: str) -> None:
    client = answering(500, content=json.dumps({"message": words, "code": 500}).encode())
    with pytest.raises(RequestRejected, match=r"apply Deployment: .* larg"):
        await client.apply({"kind": "Deployment", "metadata": {"name": "m", "namespace": "demo"}})


async def test_a_named_delay_is_kept() -> None:
    with pytest.raises(Unavailable) as caught:
        await answering(429, {"Retry-After": "12"}).list("Pod", "demo", {})
    assert caught.value.retry_after == 12.0


async def test_a_proxys_page_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="HTTP 502"):
        await answering(502, {"Content-Type": "text/html"}, b"<html>").list("Pod", "demo", {})


async def test_an_answer_that_is_no_json_is_unavailable() -> None:
    cluster = answering(200, {"Content-Type": "text/html"}, b"<html>")
    for asked in (
        cluster.list("Pod", "demo", {}),
        cluster.list_metadata("EncoderModel", "*"),
        cluster.get("Pod", "demo", "p"),
    ):
        with pytest.raises(Unavailable, match="cannot be parsed"):
            await asked


@pytest.mark.fault(
    "etcd is compacted between two pages of a list (410)", "nothing", "the list is read again from its start"
)
async def test_a_list_whose_next_page_is_too_old_is_read_again_from_the_start() -> None:
    """etcd was compacted between two pages: what was read of the first one is not used."""
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        query = request.url.query.decode()
        asked.append("continue" if "continue=" in query else "start")
        if asked == ["start", "continue"]:
            body: dict[str, Any] = {"message": "too old", "code": 410, "reason": "Expired"}
            return httpx2.Response(410, headers={"Content-Type": "application/json"}, json=body)
        page = "b" if asked[-1] == "continue" else f"a{len(asked)}"
        more = {} if asked[-1] == "continue" else {"continue": "token"}
        body = {"items": [{"metadata": {"name": page}}], "metadata": {"resourceVersion": "1", **more}}
        return httpx2.Response(200, json=body)

    cluster = Client(config=FakeCluster.config(), transport=httpx2.MockTransport(answer))
    found = await cluster.list_with_version("Pod", "demo", {})
    assert asked == ["start", "continue", "start", "continue"]
    assert [entry["metadata"]["name"] for entry in found.items] == ["a3", "b"]


LIVE: dict[str, dict[str, Any]] = {
    "deployments": {"kind": "Deployment", "apiVersion": "apps/v1", "spec": {"replicas": 1}},
    "jobs": {"kind": "Job", "apiVersion": "batch/v1"},
    "pods": {"kind": "Pod", "apiVersion": "v1"},
    "encodermodels": {"kind": "EncoderModel", "apiVersion": "encoders.dev/v1alpha1"},
}


async def late(cluster: Client, plural: str, seen: dict[str, Any]) -> None:
    """Write what was decided on an object as it was seen."""
    meta = seen["metadata"]
    if plural == "deployments":
        await cluster.apply({**seen, "metadata": {"name": "m", "namespace": "demo"}, "spec": {"replicas": 9}}, seen)
    elif plural == "jobs":
        await cluster.delete("Job", "demo", "m", meta)
    elif plural == "pods":
        await cluster.set_pod_conditions(
            "demo", "m", meta["uid"], [{"type": "g", "status": "True"}], meta["resourceVersion"]
        )
    else:
        await cluster.replace_status("demo", "m", meta, {"phase": "Serving"})


@pytest.mark.fault(
    "a write arrives after the object has changed or was recreated", "nothing", "it is rejected and changes nothing"
)
@pytest.mark.parametrize("plural", LIVE)
@pytest.mark.parametrize("how", ["changed", "replaced"])
async def test_a_write_that_comes_late_changes_nothing(plural: str, how: str) -> None:
    fake = FakeCluster()
    cluster = Client(config=FakeCluster.config(), transport=fake)
    metadata: dict[str, Any] = {"name": "m", "namespace": "demo"}
    seen = copy.deepcopy(fake.put(plural, {**copy.deepcopy(LIVE[plural]), "metadata": dict(metadata)}))
    if how == "replaced":
        fake.remove(plural, "demo", "m")
    else:
        metadata |= {"uid": seen["metadata"]["uid"], "labels": {"by": "another"}}
    now = copy.deepcopy(fake.put(plural, {**copy.deepcopy(LIVE[plural]), "metadata": metadata}))
    # that of a pod's gate is no failure: the pod's own event says what has changed
    with contextlib.nullcontext() if plural == "pods" else pytest.raises(Conflict):
        await late(cluster, plural, seen)
    assert fake.writes == []
    assert fake.objects[plural, "demo", "m"] == now
    # and one that is decided on what is there is done
    await late(cluster, plural, now)
    assert len(fake.writes) == 1


async def test_no_connection_is_unavailable() -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    cluster = Client(config=FakeCluster.config(), transport=httpx2.MockTransport(broken))
    with pytest.raises(Unavailable, match="ConnectError"):
        await cluster.get("Pod", "demo", "p")


async def test_an_error_without_a_content_type_is_unavailable() -> None:
    def bare(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(503)

    cluster = Client(config=FakeCluster.config(), transport=httpx2.MockTransport(bare))
    with pytest.raises(Unavailable):
        await cluster.get("Pod", "demo", "p")


async def test_a_missing_object_is_none_and_deleting_it_is_fine() -> None:
    assert await answering(404).get("Pod", "demo", "p") is None
    await answering(404).delete("Job", "demo", "j")


async def test_a_deleted_pods_gate_and_an_existing_event_are_no_failures() -> None:
    await answering(409).set_pod_conditions("demo", "p", "uid", [])
    await answering(409).create_event({"metadata": {"name": "e", "namespace": "demo"}})


async def test_the_operator_dies_after_the_write_that_the_test_hook_names(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("os.kill", lambda *found: killed.append(found))
    fake = FakeCluster()
    cluster = Client(config=FakeCluster.config(), transport=fake, crash_after_write=2)
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "demo"}}
    await cluster.apply(manifest)
    await cluster.get("Service", "demo", "s")
    assert killed == []
    await cluster.apply(manifest)
    assert len(killed) == 1


async def test_an_empty_list_of_metadata_comes_as_null() -> None:
    empty = b'{"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "7"}, "items": null}'
    assert await answering(200, content=empty).list_metadata("EncoderModel", "*") == []


async def test_requests_below_lightkubes_interface() -> None:
    """These use attributes of lightkube that are private."""
    asked: list[tuple[str, str, dict[str, str], Any]] = []
    an_hour_ago = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    answers: dict[str, Any] = {
        "log": "line",
        "v1": {"resources": [{"name": "httproutes"}]},
        "v1alpha1": {"components": {"schemas": {"a": {"x-kubernetes-group-version-kind": [EM]}}}},
        "selfsubjectaccessreviews": {"status": {"allowed": True}},
        "encodermodels": {"items": [{"metadata": {"name": "m", "annotations": {"a": "b"}}}], "metadata": {}},
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content) if request.content else None
        asked.append((request.method, request.url.path, dict(request.url.params), body))
        found = answers.get(request.url.path.rpartition("/")[2], {})
        content = {"content": found} if isinstance(found, str) else {"json": found}
        return httpx2.Response(200, headers={"Date": an_hour_ago}, **content)

    cluster = Client(config=FakeCluster.config(), transport=httpx2.MockTransport(answer))
    assert await cluster.read_log("demo", "p", 5) == "line"
    assert await cluster.has_resource("gateway.networking.k8s.io", "v1", "httproutes")
    assert not await cluster.has_resource("gateway.networking.k8s.io", "v1", "grpcroutes")
    assert await cluster.get_schema("encoders.dev", "v1alpha1", "EncoderModel") == {
        "x-kubernetes-group-version-kind": [EM]
    }
    assert await cluster.can_i({"verb": "get", "resource": "pods"})
    assert await cluster.list_metadata("EncoderModel", "*") == [{"name": "m"}]
    await cluster.delete("Job", "demo", "j", {"uid": "u", "resourceVersion": "7"})
    assert timedelta(minutes=59) < datetime.now(UTC) - cluster.now < timedelta(minutes=61)
    route = "/apis/gateway.networking.k8s.io/v1"
    assert [entry[:2] for entry in asked] == [
        ("GET", "/api/v1/namespaces/demo/pods/p/log"),
        ("GET", route),
        ("GET", route),
        ("GET", "/openapi/v3/apis/encoders.dev/v1alpha1"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("GET", "/apis/encoders.dev/v1alpha1/encodermodels"),
        ("DELETE", "/apis/batch/v1/namespaces/demo/jobs/j"),
    ]
    # a user's image prints what it likes
    assert asked[0][2] == {"tailLines": "5", "limitBytes": "65536"}
    assert asked[4][3]["spec"] == {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    assert asked[6][3]["preconditions"] == {"uid": "u", "resourceVersion": "7"}
