"""The adapter for plain vLLM: what it keeps between vLLM's calls, and for how long; a real server of vLLM's own around it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_checkpoints import samples
from encoder_plugins import catalog
from encoder_plugins.serving.processor import Engine, Prompt, Response
from encoder_plugins.serving.rounds import ENGINE, Running, advance
from encoder_plugins.serving.tests.servers import healthy
from encoder_plugins.tests.free_port import free_port

# importing vLLM warns a lot about itself
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


async def forever(engine: Engine) -> Response:
    try:
        await engine.encode([Prompt(token_ids=[1])])
    finally:
        CLOSED.append(1)
    raise AssertionError


CLOSED: list[int] = []


def begun() -> Running:
    running: Running = forever(ENGINE)
    advance(running)
    return running


def test_requests_with_one_id_are_distinguished_by_the_object() -> None:
    from encoder_plugins.serving.io_processor import Waiting

    waiting = Waiting()
    names = ["".join(["the", "-", "same"]) for _ in range(2)]
    assert names[0] == names[1]
    responses = [Response(body=str(number).encode()) for number in range(2)]
    for name, response in zip(names, responses, strict=True):
        waiting.put(name, response)
    assert [waiting.take(name) for name in names] == responses
    assert waiting.take(names[0]) is None
    assert len(waiting) == 0


def test_what_is_never_taken_is_dropped_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_plugins.serving import io_processor

    CLOSED.clear()
    bounded = io_processor.Waiting(most=3)
    names = [str(number) for number in range(10)]
    for name in names:
        bounded.put(name, begun())
    assert (len(bounded), len(CLOSED)) == (3, 7)
    assert bounded.take(names[0]) is None
    now = [0.0]
    monkeypatch.setattr("encoder_plugins.serving.io_processor.time.monotonic", lambda: now[0])
    aging = io_processor.Waiting(seconds=10)
    aging.put(names[0], begun())
    now[0] = 9.0
    aging.put(names[1], begun())
    assert len(aging) == 2
    now[0] = 11.0
    aging.put(names[2], begun())
    assert (len(aging), len(CLOSED)) == (2, 8)


def test_a_name_that_comes_again_replaces_what_waits() -> None:
    from encoder_plugins.serving.io_processor import Waiting

    CLOSED.clear()
    waiting = Waiting()
    waiting.put(None, begun())
    last = begun()
    waiting.put(None, last)
    assert (len(waiting), len(CLOSED)) == (1, 1)
    assert waiting.take(None) is last
    last.close()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GLiNER artifact."""
    return samples.prepare(samples.of(catalog.get("deberta_gliner")), tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def plain(artifact: Path) -> Iterator[str]:
    """The address of vLLM's own server."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--port", str(port)]
    command += ["--model", str(artifact / "model"), "--served-model-name", "ner", "--runner", "pooling"]
    command += ["--dtype", "float32", "--enforce-eager", "--io-processor-plugin", "encoder"]
    command += ["--no-enable-prefix-caching", "--no-enable-chunked-prefill"]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_PLUGINS": "encoder",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(healthy(f"{url}/health", process))
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


LABELS = ["person", "company", "city", "river"]


def body(number: int) -> dict[str, Any]:
    texts = [f"Tim Cook leads Apple {number} in Cupertino .", "", f"{number} Bonn"]
    lists = [LABELS[: 1 + number % 4], ["x"], LABELS[:2]]
    return {"model": "ner", "data": {"texts": texts, "labels_per_text": lists, "threshold": 0.1}}


@pytest.mark.engine
async def test_clients_with_one_request_id_get_their_own_answers_from_plain_vllm(plain: str) -> None:
    headers = {"x-request-id": "the-same"}

    async def answer(client: httpx.AsyncClient, number: int) -> Any:
        response = await client.post(f"{plain}/pooling", json=body(number), headers=headers)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    async with httpx.AsyncClient(timeout=120) as client:
        alone = [await answer(client, number) for number in range(8)]
        together = await asyncio.gather(*(answer(client, number % 8) for number in range(64)))
    for number, found in enumerate(together):
        expected = alone[number % 8]
        assert found["usage"] == expected["usage"]
        for mine, theirs in zip(found["results"], expected["results"], strict=True):
            assert [(entity["text"], entity["label"]) for entity in mine["entities"]] == [
                (entity["text"], entity["label"]) for entity in theirs["entities"]
            ]
    assert any(result["entities"] for result in alone[7]["results"])


@pytest.mark.engine
async def test_plain_vllm_refuses_by_field_and_answers_what_needs_no_engine(plain: str) -> None:
    async with httpx.AsyncClient(timeout=120) as client:
        bad = await client.post(f"{plain}/pooling", json={"data": {"text": "a", "labels": ["x", ""]}})
        assert (bad.status_code, "data.labels[1]" in bad.text) == (400, True)
        nothing = await client.post(f"{plain}/pooling", json={"data": {"text": " ", "labels": ["x"]}})
        assert nothing.json()["data"] == {"entities": [], "usage": {"prompt_tokens": 0, "words": 0}}


def test_a_model_folder_outside_an_artifact_needs_the_name_of_its_plugin(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from encoder_plugins.serving.io_processor import settings_of

    def config(**additional: Any) -> Any:
        model = SimpleNamespace(model=str(tmp_path / "model"))
        return SimpleNamespace(additional_config=additional, model_config=model)

    with pytest.raises(ValueError, match="needs the model folder of an artifact"):
        settings_of(config())
    found = settings_of(config(encoder={"plugin": "deberta_gliner", "limits": {"texts": 3}}))
    assert (found.plugin, found.limits["texts"], found.limits["labels"]) == ("deberta_gliner", 3, 1000)
