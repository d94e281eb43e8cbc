"""LoRA adapters that the library made, on a real engine in this process, started with the arguments that `serve` gives it.

Each request gets what the library answers with its adapter, alone and in one batch with requests for others and for none.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints import gliner2 as builder
from encoder_checkpoints.answer_cache import library_answer
from encoder_checkpoints.original import original
from encoder_plugins import catalog
from encoder_plugins.families.gliner2.tests import library
from encoder_plugins.families.gliner2.tests.test_gliner2_server import SCHEMA, TEXTS, assert_same, scores
from encoder_plugins.models.deberta_gliner2.checkpoint import CHECKPOINT
from encoder_plugins.serving import command, entrypoint, limits
from encoder_plugins.serving.command import Service
from encoder_plugins.serving.settings import Settings
from encoder_plugins.serving.tests import in_process
from encoder_plugins.serving.tuning import Tuning

# vLLM, torch and transformers warn a lot about themselves
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

PLUGIN = catalog.get("deberta_gliner2")
LIBRARY = "encoder_plugins.families.gliner2.tests.library_adapters"
# the library's own default, and a part of it; the weights are such that much is found with either
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"rank": 8, "targets": ["encoder"], "spread": 0.05},
    "keys": {"rank": 4, "targets": ["encoder.key"], "spread": 0.12},
}
CASES = [{"text": text, "schema": SCHEMA} for text in TEXTS if text.endswith((".", "!", "?"))]
# an adapter's name, and the number of a case
Sent = tuple[str | None, int]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A checkpoint, and an adapter of each name beside it."""
    folder = builder.build(tmp_path / "checkpoint")
    for seed, (name, options) in enumerate(ADAPTERS.items()):
        original("gliner2").call(f"{LIBRARY}:save", folder, tmp_path / name, seed, **options)
    return folder


@pytest.fixture
def loop(published: Path) -> Iterator[tuple[Any, dict[int, tuple[str, Any]]]]:
    """An engine with the adapters, and where the answers to requests come, by their numbers."""
    artifact = published.with_name("artifact")
    (artifact / "model").mkdir(parents=True)
    CHECKPOINT.convert(published, {}, artifact / "model")
    adapters = tuple(entrypoint.read_adapter(name, published.with_name(name), PLUGIN) for name in ADAPTERS)
    service = Service(
        artifact=artifact,
        name="extract",
        port=0,
        accelerator="cpu",
        limits=limits.defaults(PLUGIN),
        dtype="float32",
        max_model_len=1024,
        adapters=adapters,
        arguments=("--max-num-batched-tokens", "4096", "--gpu-memory-utilization", "0.2"),
    )
    arguments = command.engine_arguments(
        service, PLUGIN, CHECKPOINT.engine_settings(artifact / "model", "cpu"), Tuning(engines=1, api_servers=1)
    )
    folders = {adapter.name: str(adapter.path) for adapter in adapters}
    found: dict[int, tuple[str, Any]] = {}
    in_process.end()
    with in_process.environment():
        from encoder_plugins.offline import worker

        engine = worker.start(arguments)
        try:
            settings = Settings(plugin=PLUGIN.name, limits=dict(service.limits), adapters=folders)
            send = lambda number, kind, value: found.update({number: (kind, value)})  # noqa: E731
            yield worker.EngineLoop(engine, settings, send, parsers=0), found
        finally:
            engine.engine_core.shutdown()
            gc.collect()


def answers(running: tuple[Any, dict[int, tuple[str, Any]]], requests: Sequence[Sent]) -> list[Any]:
    """Return the answers to requests that the engine gets together."""
    loop, found = running
    found.clear()
    for number, (name, case) in enumerate(requests):
        loop.take(number, json.dumps({"data": CASES[case]} | ({} if name is None else {"lora": name})).encode())
    while loop.step():
        pass
    assert [found[number][0] for number in range(len(requests))] == ["answer"] * len(requests), found
    return [json.loads(found[number][1][0])["data"] for number in range(len(requests))]


def test_each_request_gets_what_the_library_answers_with_its_adapter(published: Path, loop: Any) -> None:
    schema = library.read(SCHEMA)
    wanted: dict[str | None, list[Any]] = {}
    for name in (None, *ADAPTERS):
        folder = None if name is None else published.with_name(name)
        found = library_answer("gliner2", f"{LIBRARY}:answers", published, folder, CASES)
        wanted[name] = [library.answer_of(schema, answer) for answer in found]
    # adapters that change nothing would show nothing
    assert wanted[None] != wanted["all"] != wanted["keys"] != wanted[None]
    requests: list[Sent] = [(name, number) for number in range(len(CASES)) for name in wanted]
    alone = [answers(loop, [sent])[0] for sent in requests]
    together = answers(loop, requests * 2)
    for (adapter, number), answer in zip(requests * 3, alone + together, strict=True):
        assert_same(answer, wanted[adapter][number], SCHEMA)
    values = [adapter for (adapter, _), answer in zip(requests, alone, strict=True) for _ in scores(answer)]
    assert all(values.count(name) > 100 for name in wanted)
