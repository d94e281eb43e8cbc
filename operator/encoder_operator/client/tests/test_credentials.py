from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from encoder_operator.client.credentials import KopfLogin
from encoder_operator.controller import watches

OPTIONS: dict[str, Any] = {"logger": logging.getLogger("test"), "settings": watches.kopf_settings()}


@pytest.fixture
async def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[str, str, str]]]:
    """What an API server was asked: path, Accept and Authorization; a kubeconfig in the environment leads to it."""
    found: list[tuple[str, str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        found.append((request.path, request.headers["Accept"], request.headers.get("Authorization", "")))
        metas = [{"name": name, "managedFields": [{"manager": "kubectl"}]} for name in "ab"]
        items = None if request.query.get("limit") == "0" else [{"metadata": meta} for meta in metas]
        if request.query.get("continue") == "expired":
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        return web.json_response({"kind": "List", "items": items, "metadata": {"resourceVersion": "7"}})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(application)
    await server.start_server()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("/"))}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield found
    await server.close()


async def test_lists_and_watches_of_children_bring_metadata_only(asked: list[tuple[str, str, str]]) -> None:
    info = await KopfLogin(["pods"]).login(**OPTIONS)
    assert info is not None
    session, pods = info.aiohttp_session, f"{info.server.rstrip('/')}/api/v1/pods"
    await session.get(pods, params={"limit": "100"})
    await session.get(pods, params={"watch": "true"})
    await session.get(f"{info.server.rstrip('/')}/api/v1")
    await session.patch(f"{pods}/pods", json={})
    await session.close()
    partial = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
    assert [accept for _, accept, _ in asked] == [partial.format("List"), partial.format(""), "*/*", "*/*"]
    assert {authorization for _, _, authorization in asked} == {"Bearer secret"}


@pytest.mark.parametrize(("limit", "names"), [("100", ["a", "b"]), ("0", [])], ids=["two items", "null items"])
async def test_kopf_lists_objects_by_their_metadata_and_an_empty_list_as_well(
    asked: list[tuple[str, str, str]], limit: str, names: list[str]
) -> None:
    info = await KopfLogin(["pods"]).login(**OPTIONS)
    assert info is not None
    # read as Kopf reads it
    answer = await info.aiohttp_session.get(f"{info.server.rstrip('/')}/api/v1/pods", params={"limit": limit})
    found = await answer.json()
    # field managers are most of the metadata, and nobody reads them
    assert [item["metadata"] for item in found.get("items", [])] == [{"name": name} for name in names]
    assert found["metadata"] == {"resourceVersion": "7"}
    await info.aiohttp_session.close()


async def test_a_page_of_a_list_that_has_expired_is_the_whole_list(asked: list[tuple[str, str, str]]) -> None:
    info = await KopfLogin(["pods"]).login(**OPTIONS)
    assert info is not None
    pods = f"{info.server.rstrip('/')}/api/v1/pods"
    answer = await info.aiohttp_session.get(pods, params={"limit": "0", "continue": "expired", "labelSelector": "a=b"})
    assert (answer.status, answer.url.query_string) == (200, "labelSelector=a%3Db")
    assert [item["metadata"]["name"] for item in (await answer.json())["items"]] == ["a", "b"]
    assert asked[0] == asked[1]
    # what is no later page of a list stays refused
    assert (await info.aiohttp_session.delete(pods, params={"continue": "expired"})).status == 410
    await info.aiohttp_session.close()


async def test_credentials_that_were_refused_are_tried_again_but_not_at_once(asked: list[tuple[str, str, str]]) -> None:
    login = KopfLogin(["pods"], again=0.2)
    loop = asyncio.get_running_loop()
    first = await login.login(**OPTIONS)
    begun = loop.time()
    second = await login.login(**OPTIONS)
    assert loop.time() - begun >= 0.2
    assert first is not None
    assert second is not None
    # Kopf never takes credentials again that are equal to refused ones
    assert first != second
    for info in (first, second):
        await info.aiohttp_session.close()


async def test_without_credentials_there_is_no_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert await KopfLogin(["pods"]).login(**OPTIONS) is None
