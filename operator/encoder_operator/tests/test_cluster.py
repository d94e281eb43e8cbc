from __future__ import annotations

from typing import Any

import httpx2
import pytest

from encoder_operator.cluster import Cluster
from encoder_operator.errors import Refused, Unavailable
from encoder_operator.tests.cluster_fake import ClusterFake


def answering(
    code: int, headers: dict[str, str] | None = None, content: bytes = b'{"message": "m", "code": %d}'
) -> Cluster:
    body = content % code if b"%d" in content else content

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(code, headers={"Content-Type": "application/json"} | (headers or {}), content=body)

    return Cluster(config=ClusterFake.config(), transport=httpx2.MockTransport(answer))


@pytest.mark.parametrize("code", [401, 409, 429, 500, 503])
async def test_what_may_pass_by_itself_is_unavailable(code: int) -> None:
    with pytest.raises(Unavailable) as caught:
        await answering(code).list("Pod", "demo", {})
    assert caught.value.status == code


@pytest.mark.parametrize("code", [400, 403, 404, 422])
async def test_what_asking_again_does_not_change_is_refused(code: int) -> None:
    with pytest.raises(Refused, match="list Pod: m"):
        await answering(code).list("Pod", "demo", {})


async def test_a_named_delay_is_kept() -> None:
    with pytest.raises(Unavailable) as caught:
        await answering(429, {"Retry-After": "12"}).list("Pod", "demo", {})
    assert caught.value.retry_after == 12.0


async def test_a_proxys_page_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="HTTP 502"):
        await answering(502, {"Content-Type": "text/html"}, b"<html>").list("Pod", "demo", {})


async def test_no_connection_is_unavailable() -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    cluster = Cluster(config=ClusterFake.config(), transport=httpx2.MockTransport(broken))
    with pytest.raises(Unavailable, match="ConnectError"):
        await cluster.get("Pod", "demo", "p")


async def test_an_error_without_a_content_type_is_unavailable() -> None:
    def bare(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(503)

    cluster = Cluster(config=ClusterFake.config(), transport=httpx2.MockTransport(bare))
    with pytest.raises(Unavailable):
        await cluster.get("Pod", "demo", "p")


async def test_a_missing_object_is_none_and_deleting_it_is_fine() -> None:
    assert await answering(404).get("Pod", "demo", "p") is None
    await answering(404).delete("Job", "demo", "j")


async def test_a_gone_pods_gate_and_a_told_event_are_no_failures() -> None:
    await answering(409).set_gate("demo", "p", "uid", {})
    await answering(409).post_event({"metadata": {"name": "e", "namespace": "demo"}})


async def test_the_operator_dies_after_the_write_that_the_test_hook_names(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("os.kill", lambda *found: killed.append(found))
    fake = ClusterFake()
    cluster = Cluster(config=ClusterFake.config(), transport=fake, crash_after_write=2)
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "demo"}}
    await cluster.apply(manifest)
    await cluster.get("Service", "demo", "s")
    assert killed == []
    await cluster.apply(manifest)
    assert len(killed) == 1
