"""What the comparisons are made of: texts, clients, arithmetic, the table; and all of it once, small, as `soak`."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import save_file

from encoder_bench import arithmetic, factory, gliner, interference, linking_workload, load, sides, unrecorded, workload
from encoder_bench.peer_process import PeerProcess, measure_together
from encoder_bench.peers import PROCESSOR, Result
from encoder_bench.sides import Row
from encoder_bench.workload import Shape
from encoder_plugins import catalog
from encoder_plugins.artifact import label_sets
from encoder_plugins.serving import limits


def test_texts_are_the_same_for_everybody_and_of_the_wanted_length() -> None:
    texts = workload.texts(20, 64)
    assert texts == workload.texts(20, 64)
    assert len(set(texts)) == 20
    assert {len(text.split()) for text in texts} == {64}
    assert len(set(workload.labels(25))) == 25
    with pytest.raises(ValueError, match="labels"):
        workload.labels(1_000)


def test_a_side_names_its_processes() -> None:
    for known in ("library", "library-8", "ours-2", "http", "http-4x3", "before-2", "profile"):
        assert sides.name(known) == known
    for unknown in ("library-0", "http-", "http-2x", "ours-2x3", "factory-2", "others"):
        with pytest.raises(ValueError, match=unknown):
            sides.name(unknown)


@pytest.fixture
def served() -> Iterator[tuple[str, list[int]]]:
    """A server that answers at once, and counts how many requests are there at the same time."""
    loop = asyncio.new_event_loop()
    at_once: list[int] = []
    now = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal now
        now += 1
        at_once.append(now)
        body = await request.json()
        await asyncio.sleep(0.01)
        now -= 1
        return web.json_response({}, status=400 if body.get("bad") else 200)

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_post("/pooling", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    runner, port = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{port}/pooling", at_once
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_clients_of_several_processes_send_together(served: tuple[str, list[int]]) -> None:
    url, at_once = served
    found = load.Clients(url, [b"{}"], clients=4, processes=2).run(seconds=1, warm=0.1)
    assert found.requests == len(found.latencies) > 0
    assert max(at_once) == 4
    assert 0.01 <= found.median <= found.percentile(0.99)


def test_a_refused_request_is_no_result(served: tuple[str, list[int]]) -> None:
    with pytest.raises(RuntimeError, match="400"):
        load.Clients(served[0], [b'{"bad": true}'], clients=1, processes=1).run(seconds=0.5, warm=0)


ENCODER = "token_rep_layer.bert_layer.model.encoder.layer.0."


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An artifact's model with one layer of round numbers."""
    folder = tmp_path / "artifact" / "model"
    folder.mkdir(parents=True)
    shapes = {
        "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight": (1000, 10),
        f"{ENCODER}query.weight": (10, 10),
        f"{ENCODER}query.bias": (10,),
        "token_rep_layer.projection.weight": (8, 10),
        "span_rep_layer.span_rep_layer.project_start.0.weight": (32, 8),
        "span_rep_layer.span_rep_layer.out_project.0.weight": (32, 16),
        "span_rep_layer.span_rep_layer.out_project.3.weight": (8, 32),
        "prompt_rep_layer.0.weight": (32, 8),
    }
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    head = {"max_width": 3}
    config = {
        "model_type": "deberta-v2",
        "num_hidden_layers": 1,
        "hidden_size": 10,
        "position_buckets": 4,
        "gliner": head,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_arithmetic_is_that_of_the_formula(model: Path) -> None:
    read = arithmetic.read(model)
    assert (read.encoder, read.words, read.labels) == (100 + 80, 256 + 512, 256 + 256)
    tokens, words, labels = 20, 6, 2
    attention = 4 * tokens * tokens * 10 + 4 * tokens * 8 * 10
    spans = 2 * words * 3 * labels * 32
    assert (
        read.operations(tokens, words, labels)
        == 2 * 180 * tokens + attention + 2 * 768 * words + 2 * 512 * labels + spans
    )


def test_windows_are_counted_as_far_as_they_reach() -> None:
    wide = arithmetic.Model(
        encoder=0, words=0, labels=0, layers=2, width=1, windows=(0, 8), position_rows=0, max_width=0, inner=0
    )
    assert wide.operations(100, 0, 0) == 4 * 100 * (100 + 8)
    assert wide.operations(4, 0, 0) == 4 * 4 * (4 + 4)


def test_the_table_compares_with_the_librarys_best(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gliner, "tokens_of", lambda folder, shape, texts: 10.0)
    shape = Shape(4, 2)
    rows = [
        Row("gliner, batches of 8", shape, 50.0, 3.5),
        Row("gliner, batches of 8, 4 processes", shape, 100.0, 3.5),
        Row("ours", shape, 500.0, 3.5, "note"),
    ]
    least = arithmetic.read(model).operations(10, 4, 2)
    shown = gliner.table(rows, model.parent, least * 1000, 8).splitlines()
    assert "| 1.0 × | 0.5 × | 5.0% |" in shown[2]
    assert "| 2.0 × | 1.0 × | 10.0% |" in shown[3]
    assert "| 500 | 5e+03 | 10.0 × | 5.0 × | 50.0% | 3.5 | note |" in shown[4]


def test_processes_at_the_same_time_are_summed_at_the_batch_size_that_is_best_alone() -> None:
    sizes: list[int] = []

    class Fixed(PeerProcess):
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def measure(self, shape: Shape, size: int = 0) -> Result:
            sizes.append(size)
            notes = {PROCESSOR: self.rate / 10}
            return Result(words=4, labels=2, rate=self.rate, how="gliner", entities=7, size=size or 16, notes=notes)

    found = measure_together([Fixed(10.0), Fixed(30.0)], Shape(4, 2))
    assert sizes == [0, 16, 16]
    assert (found.rate, found.how, found.entities) == (40.0, "gliner, 2 processes", 7)
    assert found.notes == {PROCESSOR: 2.0, "% slower the slowest process": 200.0}


def test_a_large_request_is_as_large_as_may_be() -> None:
    body = json.loads(interference.large_body(384, 0.5))
    texts = body["data"]["texts"]
    bounds = limits.defaults(catalog.get("deberta_gliner"))
    assert len(texts) == bounds["texts"] or sum(map(len, texts)) > bounds["characters"] * 0.98
    assert sum(map(len, texts)) <= bounds["characters"]
    assert len(interference.large_body(384, 0.5)) <= bounds["body_bytes"]


def test_another_version_of_a_peer_is_noticed(tmp_path: Path) -> None:
    for name in factory.PACKAGES:
        (tmp_path / "site" / name).mkdir(parents=True)
    for patch in factory.PATCHES:
        path = tmp_path / "site" / patch.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something else")
    with pytest.raises(ValueError, match=r"not vllm-factory 0\.2\.1"):
        factory.install(tmp_path / "site", tmp_path / "copy")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugin", ["deberta_gliner", "mmbert_gliner", "mt5_gliner"])
def test_a_comparison_runs_on_a_cpu(plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from encoder_checkpoints import samples

    artifact = samples.prepare(samples.of(catalog.get(plugin)), tmp_path)
    parser = argparse.ArgumentParser()
    gliner.add_arguments(parser)
    arguments = [str(artifact), str(tmp_path / "sources" / plugin), "--words", "16", "--labels", "3", "--texts", "64"]
    assert gliner.main(parser.parse_args([*arguments, "--seconds", "2", "--warm", "1", "--processes", "1"])) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 16 ")]
    assert len(rows) == 4
    # the same texts have the same entities on every side
    assert len({row[-2] for row in rows}) == 1


def test_a_prepared_set_has_the_labels_that_other_requests_send(tmp_path: Path) -> None:
    sources = unrecorded.label_sets(tmp_path, [30, 4, 30])
    assert [source.name for source in sources] == ["same-30", "same-4"]
    for source, count in zip(sources, (30, 4), strict=True):
        found = [label.text for label in label_sets.parse(Path(source.source), source.name)]
        assert found == linking_workload.label_sets(count, "same")[0]
        assert len(set(found)) == count
