"""The whole way: prepare, serve behind the admission middleware, and what clients get; the same without HTTP. One family stands for all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder_checkpoints.original import original
from encoder_client import AsyncGLiNER, GLiNER, InvalidRequestError, TruncationWarning
from encoder_client.tests import documented
from encoder_plugins import offline
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import EngineEnded, InvalidRequest
from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library, built
from encoder_plugins.prep.tests.changed_checkpoint import change
from encoder_plugins.serving.tests import in_process
from encoder_plugins.tests.free_port import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

README = Path(__file__).parents[1] / "README.md"
PLUGIN = "deberta_gliner"
START_SECONDS = 300
LABELS = ["person", "company", "city", "date of birth", "sports team", "country", "river"]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "short",
    " \n",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 6,
]
# sums over other batches end in other bits: a score this near to the threshold may be on either side
SCORE = 2.5e-5


@dataclass(frozen=True)
class Server:
    """A running server, and the library on the checkpoint that it serves."""

    library: Library
    url: str

    async def post(self, client: httpx.AsyncClient, **data: Any) -> httpx.Response:
        headers = {"x-request-id": "the same for everybody"}
        return await client.post(f"{self.url}/pooling", json={"model": "ner", "data": data}, headers=headers)

    def called(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what a method of the library's class returns."""
        oracle = "encoder_client.tests.oracle:called"
        return original("gliner").call(oracle, "GLiNER", str(self.library.folder), method, *arguments, **options)

    def answer(self, **data: Any) -> Any:
        response = httpx.post(f"{self.url}/pooling", json={"model": "ner", "data": data}, timeout=120)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def refusal(self, **data: Any) -> dict[str, Any]:
        response = httpx.post(f"{self.url}/pooling", json={"model": "ner", "data": data}, timeout=120)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        return error


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, Path]:
    """The library on a checkpoint, and what the command of the prep image makes of one that has another splitter of words."""
    folder = tmp_path_factory.mktemp(PLUGIN)
    library = built(PLUGIN, folder / "checkpoint", for_prep=True)
    adapt(library.folder, folder / "adapter", folder / "merged")
    published = shutil.copytree(library.folder, folder / "published")
    change(published, words_splitter_type="stanza")
    output = folder / ("a" * 64)
    command = [sys.executable, "-m", "encoder_plugins", "prepare", PLUGIN, str(published), str(output)]
    subprocess.run([*command, "--parameter", "wordsSplitter=whitespace"], check=True, capture_output=True)
    return library, output


def adapt(folder: Path, adapter: Path, merged: Path) -> None:
    """Write a LoRA adapter of a checkpoint's encoder as PEFT does, and the checkpoint with it merged: gliner itself loads none."""
    rank, alpha, generator = 4, 8.0, torch.Generator().manual_seed(0)
    tensors = load_file(shutil.copytree(folder, merged) / "model.safetensors")
    matrices: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(("_proj", "intermediate.dense")) and ".encoder.layer." in layer:
            first = torch.randn(rank, weight.shape[1], generator=generator) * 0.1
            second = torch.randn(weight.shape[0], rank, generator=generator) * 0.1
            matrices |= {
                f"base_model.model.{layer}.lora_A.weight": first,
                f"base_model.model.{layer}.lora_B.weight": second,
            }
            tensors[name] = weight + second @ first * (alpha / rank)
    save_file(tensors, merged / "model.safetensors")
    adapter.mkdir()
    save_file(matrices, adapter / "adapter_model.safetensors")
    targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in matrices})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def server(prepared: tuple[Library, Path]) -> Iterator[Server]:
    """A server with the default limits."""
    library, output = prepared
    port = free_port()
    command = [sys.executable, "-m", "encoder_plugins", "serve", str(output), "--digest", manifest.read(output).digest]
    command += ["--name", "ner", "--port", str(port), "--accelerator", "cpu"]
    command += ["--adapter", f"names={library.folder.with_name('adapter')}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        asyncio.run(healthy(f"http://127.0.0.1:{port}/health", process))
        yield Server(library, f"http://127.0.0.1:{port}")
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


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare entities one by one and in order."""
    assert [{**entity, "score": None, "class_probs": None} for entity in ours] == [
        {**entity, "score": None, "class_probs": None} for entity in theirs
    ]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["score"] == pytest.approx(other["score"], abs=SCORE)
        assert mine.get("class_probs", {}) == pytest.approx(other.get("class_probs", {}), abs=SCORE)


def test_a_request_that_names_an_adapter_gets_what_the_library_answers_with_it_merged(server: Server) -> None:
    merged, found = Library(server.library.folder.with_name("merged")), 0
    for text in TEXTS:
        data = {"text": text, "labels": LABELS, "threshold": 0.3}
        body = {"model": "ner", "lora": "names", "data": data}
        response = httpx.post(f"{server.url}/pooling", json=body, timeout=120)
        assert response.status_code == 200, response.text
        entities = response.json()["data"]["entities"]
        assert_same(entities, merged.entities(text, LABELS, threshold=0.3))
        # an adapter that changes nothing would show nothing
        assert not entities or entities != server.answer(**data)["entities"]
        found += len(entities)
    assert found > 20


@pytest.mark.parametrize("flat_ner", [True, False])
@pytest.mark.parametrize("multi_label", [True, False])
def test_answers_are_the_library_s(server: Server, flat_ner: bool, multi_label: bool) -> None:
    found = 0
    for threshold in (0.1, 0.5):
        options = {
            "threshold": threshold,
            "flat_ner": flat_ner,
            "multi_label": multi_label,
            "return_class_probs": True,
        }
        results = server.answer(texts=TEXTS, labels=LABELS, **options)["results"]
        for text, result in zip(TEXTS, results, strict=True):
            expected = server.library.entities(text, LABELS, **options)
            assert_same(result["entities"], expected)
            found += len(expected)
    assert found > 10


def test_the_parity_check_passes_with_the_splitter_of_the_preparation(
    server: Server, prepared: tuple[Library, Path]
) -> None:
    _, output = prepared
    command = [sys.executable, "-m", "encoder_plugins", "parity", str(output), server.url, "--name", "ner"]
    done = subprocess.run([*command, "--dtype", "float32"], check=False, capture_output=True, text=True)
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, verdict["result"]) == (0, "Passed"), verdict
    assert manifest.read(output).source["changed"] == {"gliner_config.json": {"words_splitter_type": "whitespace"}}


async def test_clients_get_their_own_answers(server: Server) -> None:
    requests: list[dict[str, Any]] = []
    for number in range(64):
        # with other labels, one of these texts has two candidates whose logits differ by 1e-5, whose order depends on rounding in the batch
        labels = LABELS[number % 3 : number % 3 + 1 + number % 3]
        text = TEXTS[number % 5] if number % 7 else f"{number} {TEXTS[0]}"
        requests.append({"text": text, "labels": labels, "threshold": 0.2, "multi_label": bool(number % 2)})

    async with httpx.AsyncClient(timeout=120) as client:

        async def answered(data: dict[str, Any]) -> Any:
            response = await server.post(client, **data)
            assert response.status_code == 200, response.text
            return response.json()["data"]["entities"]

        together = await asyncio.gather(*map(answered, requests))
    for data, found in zip(requests, together, strict=True):
        options = {"threshold": data["threshold"], "multi_label": data["multi_label"]}
        assert_same(found, server.library.entities(data["text"], data["labels"], **options))


def test_long_texts_are_refused_cut_or_read_in_parts(server: Server) -> None:
    text = TEXTS[4] * 3
    data = {"text": text, "labels": LABELS, "threshold": 0.2}
    assert f"the model takes {MAX_WORDS}" in server.refusal(**data)["message"]
    cut = server.answer(**data, overflow="truncate")
    assert_same(cut["entities"], server.library.entities(text, LABELS, threshold=0.2))
    assert (cut["truncated"], cut["words_kept"]) == (True, MAX_WORDS)
    parts = server.answer(**data, overflow="chunk")
    assert parts["chunks"] > 1
    assert max(entity["end"] for entity in parts["entities"]) > max(entity["end"] for entity in cut["entities"])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"threshold": 0.2, "flat_ner": False, "multi_label": True, "return_class_probs": True},
    {"threshold": 0.1, "input_spans": [[{"start": 0, "end": 8}, {"start": 15, "end": 20}], [], [], [], []]},
]


async def test_the_python_client_returns_what_the_library_returns(server: Server) -> None:
    described = {"PER": "person", "ORG": "company", "LOC": "city"}
    own: list[list[str]] = [LABELS[: number + 1] for number in range(len(TEXTS))]
    found = 0
    with GLiNER(server.url, model="ner") as model:
        async with AsyncGLiNER(server.url) as awaited:
            for options in OPTIONS:
                for labels in (LABELS, described, own):
                    expected = server.called("inference", TEXTS, labels, batch_size=1, **options)
                    several = model.inference(TEXTS, labels, batch_size=2, **options)
                    others = await awaited.inference(TEXTS, labels, batch_size=2, **options)
                    for mine, other, theirs in zip(several, others, expected, strict=True):
                        assert_same(mine, theirs)
                        assert_same(other, theirs)
                        found += len(theirs)
        options = {"threshold": 0.2, "flat_ner": False}
        expected = server.called("predict_entities", TEXTS[0], LABELS, **options)
        assert_same(model.predict_entities(TEXTS[0], LABELS, **options), expected)
        text = TEXTS[4] * 3
        with pytest.warns(TruncationWarning, match=str(MAX_WORDS)):
            cut = model.predict_entities(text, LABELS, threshold=0.2)
        assert_same(cut, server.called("predict_entities", text, LABELS, threshold=0.2))
        with pytest.raises(InvalidRequestError, match=f"takes {MAX_WORDS}") as caught:
            model.inference([*TEXTS, text], LABELS, batch_size=2, overflow="refuse")
        assert caught.value.param == "data.texts[5]"
        assert len(model.predict_entities(text, LABELS, threshold=0.2, overflow="chunk")) > len(cut)
    assert found > 50


def test_the_python_client_sends_fewer_texts_where_the_entities_are_too_many(server: Server) -> None:
    labels = [f"label {number}" for number in range(100)]
    options: dict[str, Any] = {"threshold": 0, "multi_label": True, "flat_ner": False}
    with GLiNER(server.url) as model:
        found = model.inference([TEXTS[4]] * 8, labels, **options)
    assert sum(map(len, found)) > 100_000
    assert all(len(each) == len(found[0]) for each in found)


async def test_the_examples_of_the_pages_run(server: Server) -> None:
    await documented.run("ner", server.url, README)


def test_an_answer_that_is_too_large_is_refused_by_number(server: Server) -> None:
    labels = [f"label {number}" for number in range(100)]
    data = {"texts": [TEXTS[4]] * 20, "labels": labels, "multi_label": True, "flat_ner": False}
    error = server.refusal(**data, threshold=0)
    assert error["param"] == "data.threshold"
    assert "more than 100000 entities" in error["message"]
    assert server.answer(text="a b", labels=["x"])["usage"]["words"] == 2


def test_refusals_name_the_field(server: Server) -> None:
    assert server.refusal(text="a", labels=["x", "<<ENT>>"])["param"] == "data.labels[1]"
    assert server.refusal(text="a", labels=["x"], threshold=2)["param"] == "data.threshold"
    assert server.answer(text=" ", labels=["x"]) == {"entities": [], "usage": {"prompt_tokens": 0, "words": 0}}
    assert server.answer(text="a b", labels=[])["entities"] == []


def test_without_http_the_answers_are_the_same(server: Server, prepared: tuple[Library, Path]) -> None:
    texts = [f"{number} {text}" for number in range(20) for text in TEXTS]
    requests: list[dict[str, Any]] = [
        {"texts": texts[number : number + 7], "labels": LABELS[: 1 + number % 7], "threshold": 0.2}
        for number in range(0, len(texts), 7)
    ]
    requests += [{"text": TEXTS[0], "labels": LABELS, "multi_label": True, "flat_ner": False, "threshold": 0.3}]
    requests[3:3] = [{"text": "a", "labels": ["x", "<<ENT>>"]}, {"text": "a", "labels": "x"}, {"labels": ["x"]}]
    with offline.Model(prepared[1], accelerator="cpu") as model:
        answers = model.map(requests)
        for number, data in enumerate(requests):
            if number in (3, 4, 5):
                with pytest.raises(InvalidRequest) as caught:
                    next(answers)
                assert caught.value.param == server.refusal(**data)["param"]
                continue
            found, expected = next(answers), server.answer(**data)
            assert found["usage"] == expected["usage"]
            for mine, theirs in zip(results(found), results(expected), strict=True):
                assert_same(mine["entities"], theirs["entities"])
        assert next(answers, None) is None
        assert model.answer({"text": " ", "labels": ["x"]}) == {
            "entities": [],
            "usage": {"prompt_tokens": 0, "words": 0},
        }
        waiting = model.submit(requests[0])
        assert len(waiting.result()["results"]) == 7
        (engine,) = model._engines
        lost = [model.submit(requests[0]) for _ in range(50)]
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineEnded, match="before it had an answer"):
            lost[-1].result()
    with pytest.raises(EngineEnded):
        model.answer(requests[0])


def test_the_example_without_a_server_runs_as_it_stands_on_the_page(
    server: Server, prepared: tuple[Library, Path]
) -> None:
    (block,) = [
        found for found in documented.blocks(documented.ROOT / "docs" / "serving.md") if "offline.Model(" in found
    ]
    texts = [f"{number} {TEXTS[4]}" for number in range(40)]
    variables: dict[str, Any] = {"texts": texts}
    exec(block.replace("artifacts/ner", str(prepared[1])), variables)
    expected = server.answer(texts=texts[32:], labels=["person", "city"])
    for mine, theirs in zip(results(variables["answer"]), results(expected), strict=True):
        assert_same(mine["entities"], theirs["entities"])


def results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.get("results", [answer])
    return found


@pytest.mark.filterwarnings("ignore")
def test_in_process_each_text_gets_its_own_labels(
    prepared: tuple[Library, Path],
) -> None:
    library, output = prepared
    with in_process.environment():
        llm = in_process.start(
            output / "model",
            dtype="float32",
            enable_chunked_prefill=False,
            io_processor_plugin="encoder",
            additional_config={"encoder": {"plugin": PLUGIN}},
        )
        lists = [LABELS[: number + 1] for number in range(len(TEXTS))]
        for threshold in (0.2, 0.5):
            data = {"texts": TEXTS, "labels_per_text": lists, "threshold": threshold}
            answer: Any = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)[0].outputs
            for text, labels, result in zip(TEXTS, lists, answer["results"], strict=True):
                assert_same(result["entities"], library.entities(text, labels, threshold=threshold))
