"""The operator as a process: how it ends, and what it does when its watches can't go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from encoder_operator.tests.fake_api_server import FakeApiServer, Operator, operator, serving, status, until

ALL = {"encodermodels", "pods", "services", "jobs", "deployments"}
LEASE = {"ENCODER_LEASE": "true", "ENCODER_IDENTITY": "one"}
MODEL = {"metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "1"}}


@pytest.fixture
def fake() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture
async def kubeconfig(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[Path]:
    async with serving(fake, tmp_path) as found:
        yield found


async def stopped(running: Operator) -> int:
    """Return the exit code after SIGTERM. A process that takes longer than 4.5 s ends itself with 1, by its own timer."""
    running.process.send_signal(signal.SIGTERM)
    return await running.ended(20)


async def test_it_ends_at_once_where_nothing_hinders_it(fake: FakeApiServer, kubeconfig: Path) -> None:
    async with operator(kubeconfig, **LEASE) as running:
        await until(lambda: fake.watched == ALL)
        port = running.said("started")[0]["port"]
        # somebody who scrapes keeps the connection
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/metrics") as answer:
            await answer.read()
            assert await stopped(running) == 0
        assert fake.lease is not None
        assert "holderIdentity" not in fake.lease["spec"]
        assert running.traced == []


@pytest.mark.parametrize("plural", sorted(ALL))
async def test_what_exists_at_the_start_is_reconciled(plural: str, fake: FakeApiServer, kubeconfig: Path) -> None:
    """Only one list has an object; the others are empty."""
    meta = {**MODEL["metadata"], "labels": {"encoders.dev/model": "m"}}
    fake.objects[plural] = [{"metadata": meta}]
    async with operator(kubeconfig) as running:
        await until(lambda: fake.watched == ALL)
        await until(lambda: any("/namespaces/n/" in path for _, path, _ in fake.asked))
        # the fake has no object that is whole enough to be reconciled; what Kopf does before must not fail
        assert [line for line in running.traced if not line["logger"].endswith(".workqueue")] == []


async def test_namespaces_that_are_selected_are_read_first_and_followed(fake: FakeApiServer, kubeconfig: Path) -> None:
    def namespace(version: str, **labels: str) -> dict[str, Any]:
        return {"metadata": {"name": "n", "uid": "n", "resourceVersion": version, "labels": labels}}

    def reads() -> int:
        return sum("/namespaces/n/encodermodels/m" in path for _, path, _ in fake.asked)

    fake.objects["encodermodels"] = [MODEL]
    fake.objects["namespaces"] = [namespace("1")]
    selector = '{"matchExpressions": [{"key": "team", "operator": "In", "values": ["search"]}]}'
    async with operator(kubeconfig, ENCODER_NAMESPACE_SELECTOR=selector, ENCODER_RESYNC_SECONDS="3600") as running:
        await until(lambda: fake.watched == ALL | {"namespaces"})
        lists = [path for method, path, watch in fake.asked if method == "GET" and not watch]
        assert lists.index("/api/v1/namespaces") < lists.index("/apis/encoders.dev/v1alpha1/encodermodels")
        await fake.tell("namespaces", {"type": "MODIFIED", "object": namespace("2", team="search")})
        await until(lambda: reads())
        await fake.tell("namespaces", {"type": "MODIFIED", "object": namespace("3", team="ads")})
        await until(lambda: running.said("a namespace is no longer served: its labels do not match, or it is gone"))
        before = reads()
        changed = {"metadata": {**MODEL["metadata"], "resourceVersion": "4"}}
        await fake.tell("encodermodels", {"type": "MODIFIED", "object": changed})
        await fake.tell("namespaces", {"type": "MODIFIED", "object": namespace("5", team="search")})
        await until(lambda: len(running.said("a namespace is served: its labels match")) == 2)
        await until(lambda: reads() > before)
        # metadata only, of namespaces too
        assert {kind for path, kind in fake.accepted if path == "/api/v1/namespaces"} == {
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        }


async def test_it_ends_in_time_while_the_api_server_does_not_answer(fake: FakeApiServer, kubeconfig: Path) -> None:
    fake.objects["encodermodels"] = [MODEL]
    async with operator(kubeconfig, **LEASE) as running:
        await until(lambda: fake.watched == ALL)
        fake.fault = lambda request: 60.0
        for number in range(2, 20):
            changed = {"metadata": {**MODEL["metadata"], "name": f"m{number}", "uid": str(number)}}
            await fake.tell("encodermodels", {"type": "ADDED", "object": changed})
        # looks are under way, and the renewal of the lease
        before = len(fake.asked)
        await until(lambda: len(fake.asked) > before)
        assert await stopped(running) == 0
        assert running.traced == []


async def test_a_stand_by_ends_at_once(fake: FakeApiServer, kubeconfig: Path) -> None:
    fake.lease = {
        "metadata": {"name": "encoder-operator", "namespace": "default", "resourceVersion": "0"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 15},
    }
    async with operator(kubeconfig, **LEASE) as running:
        await until(lambda: running.said("standing by"))
        assert await stopped(running) == 0


@pytest.mark.fault(
    "the shutdown hangs",
    "a traceback in the log",
    "the operator exits with code 1 within 5 seconds",
)
@pytest.mark.parametrize("how", ["time.sleep(60)", "await asyncio.Event().wait()"])
async def test_a_hanging_shutdown_is_aborted_with_a_traceback(how: str, fake: FakeApiServer, kubeconfig: Path) -> None:
    first = (
        "import asyncio, time\n"
        "from encoder_operator.client.client import Client\n"
        "async def hangs_here(self):\n"
        f"    {how}\n"
        "Client.close = hangs_here"
    )
    async with operator(kubeconfig, first) as running:
        await until(lambda: fake.watched == ALL)
        assert await stopped(running) == 1
        assert "Timeout" in running.log.read_text()


@pytest.mark.fault(
    "a watch gets an error other than an expired version",
    "a log message",
    "the operator releases its Lease and exits with code 1; the next process reads everything",
)
async def test_a_watch_that_can_not_go_on_ends_the_process_with_a_line(fake: FakeApiServer, kubeconfig: Path) -> None:
    async with operator(kubeconfig, **LEASE) as running:
        await until(lambda: fake.watched == ALL)
        broken = {"kind": "Status", "code": 500, "message": "etcdserver: no leader"}
        await fake.tell("pods", {"type": "ERROR", "object": broken})
        assert await running.ended(10) == 1
        assert "no leader" in running.said("a watch failed; the operator exits and must be restarted")[0]["error"]
        assert running.traced == []
        # the next one need not wait
        assert fake.lease is not None
        assert "holderIdentity" not in fake.lease["spec"]


async def test_a_watch_whose_events_are_too_old_begins_again(fake: FakeApiServer, kubeconfig: Path) -> None:
    async with operator(kubeconfig) as running:
        await until(lambda: fake.watched == ALL)
        lists = fake.asked.count(("GET", "/api/v1/pods", False))
        old = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        await fake.tell("pods", {"type": "ERROR", "object": old})
        await until(lambda: fake.asked.count(("GET", "/api/v1/pods", False)) > lists)
        await until(lambda: fake.watched == ALL)
        assert running.process.returncode is None
        assert running.traced == []


@pytest.mark.parametrize("code", [403, 429, 500])
async def test_a_start_waits_for_an_api_server_that_refuses(code: int, fake: FakeApiServer, kubeconfig: Path) -> None:
    refused: list[str] = []

    def fault(request: web.Request) -> web.Response | None:
        refused.append(request.path)
        return status(code)

    fake.fault = fault
    async with operator(kubeconfig) as running:
        await until(lambda: len(refused) > 2 and running.said("waiting for the API server"))
        fake.fault = lambda request: None
        await until(lambda: fake.watched == ALL)
        assert running.traced == []


@pytest.mark.fault(
    "the CustomResourceDefinition is installed after the operator",
    "a log message",
    "the operator starts to watch when it is installed",
)
async def test_the_start_waits_for_the_custom_resource_definition(fake: FakeApiServer, kubeconfig: Path) -> None:
    fake.groups = {name: found for name, found in fake.groups.items() if not name.startswith("encoders.dev")}
    async with operator(kubeconfig) as running:
        await until(
            lambda: running.said(
                "the API server does not serve EncoderModels; is the CustomResourceDefinition installed?"
            )
        )
        assert fake.watched == set()
        fake.groups = FakeApiServer().groups
        await until(lambda: fake.watched == ALL)


@pytest.mark.fault(
    "the operator's token is rotated, and the old one is rejected (401)", "log messages", "the new token is read"
)
async def test_refused_credentials_are_read_again_until_they_are_taken(fake: FakeApiServer, kubeconfig: Path) -> None:
    """A token was rotated, and the old one is not taken any more; the new one comes to the file a while later."""
    taken = "Bearer secret"
    refused: list[str] = []

    def fault(request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") != taken:
            refused.append(request.path)
            return status(401, "Unauthorized")
        return None

    fake.fault = fault
    async with operator(kubeconfig) as running:
        await until(lambda: fake.watched == ALL)
        taken = "Bearer rotated"
        # what is open stays open; the next list or watch is refused
        old = {"kind": "Status", "code": 410, "message": "too old resource version"}
        await fake.tell("pods", {"type": "ERROR", "object": old})
        await until(lambda: refused)
        await asyncio.sleep(1)
        # as the kubelet does it: all of it at once
        rotated = kubeconfig.with_suffix(".new")
        rotated.write_text(kubeconfig.read_text().replace("secret", "rotated"))
        rotated.replace(kubeconfig)
        await until(lambda: fake.watched == ALL)
        assert len(refused) < 15
        assert running.process.returncode is None
        assert running.traced == []
