"""The parity command against servers that answer, refuse, stall and fail."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import save

from encoder_plugins.__main__ import main
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.parity import client

Answer = Callable[[dict[str, Any], int], Awaitable[web.StreamResponse]]
CASES = [
    {"id": f"c{n}", "text": f"text {n}", "prompt_name": None, "dimensions": None, "normalize": None} for n in range(5)
]
EXPECTED = {f"{case['id']}/vector": np.array([1, n], dtype=np.float32) for n, case in enumerate(CASES)}


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """An artifact with a reference of five cases."""
    files = {artifact.CASES: json.dumps(CASES).encode(), artifact.EXPECTED: save(EXPECTED), artifact.ABOUT: b"{}"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    entries = [
        artifact.FileEntry(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()
    ]
    manifest = artifact.Manifest(
        key="k",
        plugin="sentence_transformer",
        prep_version=1,
        licence_note=None,
        source={"revision": "r"},
        files=tuple(sorted(entries)),
    )
    (tmp_path / artifact.MANIFEST).write_bytes(manifest.encode())
    return tmp_path


def served(answer: Answer) -> AbstractAsyncContextManager[str]:
    """A server whose ``answer`` gets the request's data and its number."""

    @asynccontextmanager
    async def running() -> Any:
        count = 0

        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal count
            count += 1
            body = await request.json()
            assert body["model"] == "m"
            return await answer(body.get("data") or {"texts": body["input"], "encoding": "openai"}, count)

        application = web.Application()
        for route in ("/pooling", "/v1/embeddings"):
            application.router.add_post(route, handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    return running()


async def right(data: dict[str, Any], count: int) -> web.StreamResponse:
    texts = [data["text"]] if "text" in data else data["texts"]
    vectors = [np.array([1, int(text.split()[1])], dtype="<f4") for text in texts]
    if data["encoding"] == "openai":
        encoded = [base64.b64encode(v.tobytes()).decode() for v in vectors]
        return web.json_response({"object": "list", "data": [{"embedding": text} for text in encoded]})
    if data["encoding"] == "base64":
        return web.json_response({"data": {"embeddings": [base64.b64encode(v.tobytes()).decode() for v in vectors]}})
    return web.json_response({"data": {"embeddings": [v.tolist() for v in vectors]}})


async def verdict(prepared: Path, answer: Answer, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the whole command against a server, in a thread; return its status and what it left for kubelet."""
    log = prepared.parent / f"{prepared.name}.log"
    async with served(answer) as url:
        command = ["parity", str(prepared), url, "--name", "m", "--dtype", "float32", "--termination-log", str(log)]
        status = await asyncio.to_thread(main, [*command, "--timeout", "5", "--binding", '{"uid": "u"}', *arguments])
    return status, json.loads(log.read_text())


async def test_right_answers_pass(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = await verdict(prepared, right)
    assert (status, found["result"], found["cases"], found["binding"]) == (0, "Passed", 5, {"uid": "u"})
    assert found["artifact"] == artifact.read(prepared).digest
    assert found["reference"] == artifact.read(prepared).reference_digest
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == found
    assert len(lines) == 4 * 5 + 1
    # a server that does not report its versions passes all the same
    assert found["versions"] == {}


async def test_answers_that_depend_on_their_company_fail(prepared: Path) -> None:
    async def mixed(data: dict[str, Any], count: int) -> web.StreamResponse:
        if "texts" in data:
            data = {**data, "texts": data["texts"][::-1]}
        return await right(data, count)

    status, found = await verdict(prepared, mixed)
    assert (status, found["result"]) == (1, "Failed")


async def test_a_refusal_fails(prepared: Path) -> None:
    async def refuse(data: dict[str, Any], count: int) -> web.StreamResponse:
        return await right(data, count) if count != 3 else web.json_response({"error": {}}, status=400)

    status, found = await verdict(prepared, refuse)
    assert (status, found["worst"][0]) == (1, "c2")


@pytest.mark.parametrize("status_code", [500, 502, 504, 429, 408])
async def test_a_server_that_fails_by_itself_is_no_evidence(prepared: Path, status_code: int) -> None:
    async def fail(data: dict[str, Any], count: int) -> web.StreamResponse:
        return await right(data, count) if count < 12 else web.Response(status=status_code)

    status, found = await verdict(prepared, fail)
    assert (status, found["result"]) == (2, "Inconclusive")
    assert str(status_code) in found["message"]


async def test_a_request_to_a_full_server_is_repeated(prepared: Path) -> None:
    async def full(data: dict[str, Any], count: int) -> web.StreamResponse:
        return await right(data, count) if count % 2 else web.Response(status=503, headers={"Retry-After": "0"})

    assert (await verdict(prepared, full))[0] == 0


async def test_a_server_that_stalls_is_no_evidence(prepared: Path) -> None:
    async def stall(data: dict[str, Any], count: int) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    status, found = await verdict(prepared, stall, "--timeout", "0.5")
    assert (status, found["result"]) == (2, "Inconclusive")
    assert "0.5 s" in found["message"]


async def test_text_that_is_not_json_fails(prepared: Path) -> None:
    async def page(data: dict[str, Any], count: int) -> web.StreamResponse:
        return web.Response(text="<html>")

    assert (await verdict(prepared, page))[1]["result"] == "Failed"


async def test_a_redirect_is_not_followed(prepared: Path) -> None:
    async def away(data: dict[str, Any], count: int) -> web.StreamResponse:
        raise web.HTTPFound("http://elsewhere.invalid/")

    assert (await verdict(prepared, away))[1]["result"] == "Failed"


def test_nobody_there_is_no_evidence(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["parity", str(prepared), "http://127.0.0.1:9", "--name", "m", "--dtype", "float32"])
    assert status == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["result"] == "Inconclusive"


def test_a_changed_reference_is_no_evidence(prepared: Path) -> None:
    (prepared / artifact.EXPECTED).write_bytes(save({name: value * 2 for name, value in EXPECTED.items()}))
    target = client.Target(url="http://127.0.0.1:9", name="m", dtype="float32", thresholds={}, timeout=1, binding={})
    found = client.run(prepared, target)
    assert found.result == "Inconclusive"
    assert "differs" in found.message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_is_inconclusive_whatever_the_server_answers(
    prepared: Path, value: float
) -> None:
    write_expected(prepared, {**EXPECTED, "c1/vector": np.array([1, value], np.float32)})
    target = client.Target(url="http://127.0.0.1:9", name="m", dtype="float32", thresholds={}, timeout=1, binding={})
    found = client.run(prepared, target)
    assert found.result == "Inconclusive"
    assert "case c1 (vector) holds NaN or infinity" in found.message


def write_expected(folder: Path, arrays: dict[str, Any]) -> None:
    """Replace the expected outputs and seal the artifact again."""
    (folder / artifact.EXPECTED).write_bytes(save(arrays))
    (folder / artifact.MANIFEST).unlink()
    manifest = artifact.build(
        folder,
        key="k",
        plugin="sentence_transformer",
        prep_version=1,
        licence_note=None,
        source={"revision": "r"},
    )
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())
