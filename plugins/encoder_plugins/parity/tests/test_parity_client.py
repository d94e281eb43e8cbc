"""The parity command against servers that answer, refuse, stall and fail."""

import asyncio
import base64
import hashlib
import json
import time
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
from encoder_plugins.compatibility import PLUGIN_VERSION_HEADER
from encoder_plugins.models.sentence_transformer.parity import PARITY
from encoder_plugins.parity import client
from encoder_plugins.parity import plan as plans

Answer = Callable[[dict[str, Any], int], Awaitable[web.StreamResponse]]
CASES: list[dict[str, Any]] = [
    {"id": f"c{n}", "text": f"text {n}", "prompt_name": None, "dimensions": None, "normalize": None} for n in range(5)
]
EXPECTED = {f"{case['id']}/vector": np.array([1, n], dtype=np.float32) for n, case in enumerate(CASES[:4])}
# one has scores, which are what the documents say
CASES[4]["documents"] = ["text 2", "text 3", "text 1"]
EXPECTED["c4/scores"] = np.array([2, 3, 1], dtype=np.float32)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """An artifact with a reference of five cases."""
    return prepare(tmp_path, CASES)


def prepare(folder: Path, cases: list[dict[str, Any]]) -> Path:
    files = {artifact.CASES: json.dumps(cases).encode(), artifact.EXPECTED: save(EXPECTED), artifact.ABOUT: b"{}"}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
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
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())
    return folder


def served(answer: Answer, keys: list[str | None]) -> AbstractAsyncContextManager[str]:
    """A server whose ``answer`` gets the request's data and its number; ``keys`` gets the API key of each request."""

    @asynccontextmanager
    async def running() -> Any:
        count = 0

        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal count
            count += 1
            keys.append(request.headers.get("authorization"))
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
    if "query" in data:
        ranking = sorted(((int(text.split()[1]), place) for place, text in enumerate(data["documents"])), reverse=True)
        scores, indices = zip(*ranking, strict=True)
        return web.json_response({"data": {"results": [{"indices": indices, "scores": scores}]}})
    texts = [data["text"]] if "text" in data else data["texts"]
    vectors = [np.array([1, int(text.split()[1])], dtype="<f4") for text in texts]
    if data["encoding"] == "openai":
        encoded = [base64.b64encode(v.tobytes()).decode() for v in vectors]
        return web.json_response({"object": "list", "data": [{"embedding": text} for text in encoded]})
    if data["encoding"] == "base64":
        return web.json_response({"data": {"embeddings": [base64.b64encode(v.tobytes()).decode() for v in vectors]}})
    return web.json_response({"data": {"embeddings": [v.tolist() for v in vectors]}})


async def verdict(
    prepared: Path, answer: Answer, *arguments: str, keys: list[str | None] | None = None
) -> tuple[int, dict[str, Any]]:
    """Run the whole command against a server, in a thread; return its status and what it left for kubelet."""
    log = prepared.parent / f"{prepared.name}.log"
    async with served(answer, [] if keys is None else keys) as url:
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


@pytest.mark.parametrize(("given", "sent"), [(None, None), ("", None), ("secret", "Bearer secret")])
async def test_a_key_is_sent_with_every_request(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, sent: str | None
) -> None:
    monkeypatch.delenv("ENCODER_API_KEY", raising=False)
    if given is not None:
        monkeypatch.setenv("ENCODER_API_KEY", given)
    keys: list[str | None] = []
    assert (await verdict(prepared, right, keys=keys))[0] == 0
    assert set(keys) == {sent}


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


async def test_a_check_keeps_the_limits_that_the_server_was_started_with(prepared: Path) -> None:
    async def small(data: dict[str, Any], count: int) -> web.StreamResponse:
        texts = len(data.get("texts", [0]))
        return await right(data, count) if texts <= 2 else web.json_response({"error": {}}, status=400)

    assert (await verdict(prepared, small))[1]["result"] == "Failed"
    assert (await verdict(prepared, small, "--limit", "texts=2"))[1]["result"] == "Passed"
    # no case is left that such a server would answer: nothing was compared
    status, found = await verdict(prepared, small, "--limit", "characters_per_text=3")
    assert (status, found["result"], found["cases"]) == (2, "Inconclusive", 0)
    assert found["message"].startswith(
        "the server's limits let 0 of 5 cases through; at least half must be sent: raise"
    )


async def test_limits_that_leave_too_few_cases_never_pass_and_hide_no_failure(prepared: Path) -> None:
    async def wrong(data: dict[str, Any], count: int) -> web.StreamResponse:
        return web.json_response({"data": {"embeddings": [[-1.0, 0.0]]}})

    texts = ["text 0", "text 003", "text 02", "text 004", "text 04"]
    prepare(prepared, [case | {"text": text} for case, text in zip(CASES, texts, strict=True)])
    assert (await verdict(prepared, right, "--limit", "characters_per_text=7"))[1]["result"] == "Passed"
    status, found = await verdict(prepared, right, "--limit", "characters_per_text=6")
    assert (status, found["result"], found["cases"]) == (2, "Inconclusive", 1)
    assert "let 1 of 5 cases through" in found["message"]
    assert (await verdict(prepared, wrong, "--limit", "characters_per_text=6"))[1]["result"] == "Failed"


@pytest.mark.parametrize("status_code", [500, 502, 504, 429, 408, 401, 403])
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


async def test_a_full_server_is_left_alone_for_as_long_as_it_says(prepared: Path) -> None:
    came: list[float] = []

    async def full_once(data: dict[str, Any], count: int) -> web.StreamResponse:
        came.append(time.monotonic())
        return web.Response(status=503, headers={"Retry-After": "1"}) if count == 1 else await right(data, count)

    assert (await verdict(prepared, full_once))[0] == 0
    assert came[1] - came[0] >= 1


@pytest.mark.parametrize("status_code", [201, 404, 422])
async def test_right_content_under_another_status_is_a_wrong_answer(prepared: Path, status_code: int) -> None:
    async def odd(data: dict[str, Any], count: int) -> web.StreamResponse:
        response = await right(data, count)
        response.set_status(status_code)
        return response

    status, found = await verdict(prepared, odd)
    assert (status, found["result"]) == (1, "Failed")
    assert f"answered {status_code}" in found["message"]


async def test_of_a_long_error_the_message_has_the_beginning(prepared: Path) -> None:
    async def wordy(data: dict[str, Any], count: int) -> web.StreamResponse:
        return web.Response(status=500, text="why " * 5_000)

    _, found = await verdict(prepared, wordy)
    assert "answered 500: b'why why" in found["message"]
    assert len(found["message"]) < 400


def test_a_termination_log_that_cannot_be_written_is_reported_and_changes_no_verdict(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["parity", str(prepared), "http://127.0.0.1:9", "--name", "m", "--dtype", "float32"]
    assert main([*command, "--termination-log", str(prepared)]) == 2
    printed = capsys.readouterr()
    assert str(prepared) in printed.err
    assert json.loads(printed.out.splitlines()[-1])["result"] == "Inconclusive"


@pytest.mark.parametrize(("given", "seconds"), [("0", 0), ("3", 3), ("3600", 5), ("-1", 1), ("soon", 1), ("²", 1)])
def test_a_full_server_is_waited_for_as_it_says_but_never_long(given: str, seconds: float) -> None:
    assert client._seconds(given) == seconds


async def test_503_without_retry_after_is_a_failure_of_the_server(prepared: Path) -> None:
    async def down(data: dict[str, Any], count: int) -> web.StreamResponse:
        return web.Response(status=503)

    status, found = await verdict(prepared, down)
    assert (status, "503" in found["message"]) == (2, True)


async def test_an_answer_that_is_too_large_fails_before_it_is_read(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 200_000)

    async def endless(data: dict[str, Any], count: int) -> web.StreamResponse:
        return web.Response(body=bytes(10_000_000))

    status, found = await verdict(prepared, endless)
    assert (status, found["result"]) == (1, "Failed")
    assert "larger than 200000 bytes" in found["message"]


async def test_only_the_later_passes_have_requests_at_the_same_time(prepared: Path) -> None:
    one_by_one = sum(len(step.batches) for step in plans.plan(PARITY, CASES)[:2])
    in_flight, most, two = 0, 0, asyncio.Event()

    async def watched(data: dict[str, Any], count: int) -> web.StreamResponse:
        nonlocal in_flight, most
        in_flight += 1
        try:
            if count <= one_by_one:
                most = max(most, in_flight)
                # a request that should have waited would come now
                await asyncio.sleep(0.02)
            elif in_flight == 2:
                two.set()
            elif count == one_by_one + 1:
                await two.wait()
            return await right(data, count)
        finally:
            in_flight -= 1

    status, _ = await verdict(prepared, watched, "--timeout", "60")
    assert (status, most, two.is_set()) == (0, 1, True)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            {"body": b'{"version": "0.32.0"}', "headers": {PLUGIN_VERSION_HEADER: "1.0"}},
            {"vllm": "0.32.0", "plugin": "1.0"},
        ),
        ({"body": b'{"version": "0.32.0"}'}, {"vllm": "0.32.0"}),
        ({"body": b'{"version": "' + b"1" * 100 + b'"}'}, {"vllm": "1" * 64}),
        ({"body": b'{"version": 32}'}, {}),
        ({"body": b"[]"}, {}),
        ({"body": b"<html>"}, {}),
        ({"body": b'{"version": "0.32.0"}' + b" " * 5000}, {"vllm": "0.32.0"}),
        # what follows the first 4 KiB is not read
        ({"body": b" " * 5000 + b'{"version": "0.32.0"}'}, {}),
        ({"body": b'{"version": "0.32.0"}', "status": 404}, {}),
        # the connection is closed before the response
        (None, {}),
        ({"status": 302, "headers": {"Location": "/pooling"}}, {}),
    ],
)
async def test_versions_are_those_that_the_server_reports(
    response: dict[str, Any] | None, expected: dict[str, str]
) -> None:
    async def version(request: web.Request) -> web.StreamResponse:
        if response is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.Response(**response)

    application = web.Application()
    application.router.add_get("/version", version)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert await client.versions(f"http://127.0.0.1:{runner.addresses[0][1]}/pooling") == expected
    finally:
        await runner.cleanup()
    assert await client.versions("http://127.0.0.1:9") == {}


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


def test_a_quantization_without_a_tolerance_is_no_evidence(prepared: Path) -> None:
    target = client.Target(
        url="http://127.0.0.1:9", name="m", dtype="float32", thresholds={}, timeout=1, binding={}, quantization="int4"
    )
    found = client.run(prepared, target)
    assert (found.result, found.cases) == ("Inconclusive", 5)
    assert "no tolerance for quantization 'int4'" in found.message


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
