"""The loop behind ``offline.Model``: which rounds the engine has at the same time. The engine is the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from encoder_plugins import catalog
from encoder_plugins.serving.processor import Engine, Prompt, Response
from encoder_plugins.serving.settings import Settings

# importing vLLM warns a lot about itself
pytestmark = pytest.mark.filterwarnings("ignore")

# of all rounds in flight: four batches
BATCH = 10
LIMIT_SECONDS = 30


class FakeEngine:
    """Pools a prompt to its first token id; computes a prompt a step, the oldest first."""

    def __init__(self) -> None:
        scheduler = SimpleNamespace(max_num_batched_tokens=BATCH, max_num_seqs=BATCH)
        self.vllm_config = SimpleNamespace(scheduler_config=scheduler)
        self.waiting: list[tuple[str, list[int]]] = []
        self.loaded: list[str] = []

    def add_lora(self, lora_request: Any) -> bool:
        self.loaded.append(lora_request.lora_name)
        return True

    def add_request(self, name: str, prompt: Any, params: Any, lora_request: Any = None) -> str:
        self.waiting.append((name, prompt["prompt_token_ids"]))
        return name

    def step(self) -> Sequence[Any]:
        name, ids = self.waiting.pop(0)
        return [SimpleNamespace(request_id=name, outputs=SimpleNamespace(data=ids[0]))]


class TwoRounds:
    """Encodes one token, and then what the body says: documents of so many tokens."""

    def parse(self, route: Any, body: bytes) -> list[int]:
        return [int(number) for number in body.split()]

    async def run(self, lengths: list[int], engine: Engine) -> Response:
        found = await engine.encode([Prompt(token_ids=[1])])
        if lengths:
            found += await engine.encode([Prompt(token_ids=[2] * length) for length in lengths])
        return Response(body=repr(found).encode())


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, FakeEngine, dict[int, Any]]]:
    from encoder_plugins.offline import worker

    plugin = catalog.get("moderncolbert")
    monkeypatch.setattr("encoder_plugins.offline.worker.adapter.build_from", lambda *_: (plugin, TwoRounds()))
    engine, answers = FakeEngine(), dict[int, Any]()
    given: Any = engine
    settings = Settings(plugin=plugin.name, limits={}, adapters={"a": "/a", "b": "/b"})
    loop = worker.EngineLoop(given, settings, lambda number, *what: answers.update({number: what}))
    yield loop, engine, answers
    loop.end()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.001)


def test_the_first_round_of_a_request_is_computed_beside_the_last_documents_of_another(loop: Any) -> None:
    running, engine, answers = loop
    running.take(1, b"20 " * 5)  # more tokens than may be in flight
    until(lambda: not running._ready.empty())
    running.step()
    until(lambda: not running._ready.empty())
    running.step()
    running.take(2, b"")
    # 80, 60 and 40 tokens are left of the documents, and 40 may be in flight
    for left in (4, 3, 2):
        assert len(engine.waiting) == left
        time.sleep(0.05)
        assert (running._ready.empty(), 2 in answers) == (True, False)
        running.step()
    # of the documents one is still to be computed
    until(lambda: not running._ready.empty())
    running.step()
    running.step()
    until(lambda: len(answers) == 2)
    assert answers[1][1][0] == b"[1, 2, 2, 2, 2, 2]"
    assert answers[2][1][0] == b"[1]"


def test_an_engine_that_nobody_waits_for_any_more_ends_without_an_error(loop: Any) -> None:
    from encoder_plugins.offline import worker

    here, there = Pipe()
    here.close()
    with pytest.MonkeyPatch.context() as patch, there:
        patch.setattr(worker, "EngineLoop", lambda *_: loop[0])
        worker.serve(there, loop[1], Settings(plugin="moderncolbert", limits={}))


def test_a_first_round_is_given_back_with_its_answer(loop: Any) -> None:
    running, engine, answers = loop
    for number in range(3 * 4 * BATCH):
        running.take(number, b"")
    while len(answers) < 3 * 4 * BATCH:
        assert len(engine.waiting) <= 4 * BATCH
        if not running.step():
            time.sleep(0.001)


def test_requests_that_have_not_begun_are_dropped_at_the_end(loop: Any) -> None:
    running, _, answers = loop
    most = 4 * BATCH
    for number in range(10 * most):
        running.take(number, b"")
    # the threads that parse wait for room
    until(lambda: running._ready.qsize() == most)
    ending = threading.Thread(target=running.end)
    ending.start()
    running.run()
    ending.join()
    assert len(answers) < 3 * most


def test_adapters_are_loaded_before_the_first_request(loop: Any) -> None:
    # vLLM ends with what it cannot load
    assert loop[1].loaded == ["a", "b"]
