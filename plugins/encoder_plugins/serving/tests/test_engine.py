"""vLLM's engine as processors see it: order, priorities, failures and cancellation, with an engine client of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from encoder_plugins import catalog
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving import steps
from encoder_plugins.serving.processor import Part, Prompt, ServingContext
from encoder_plugins.serving.settings import Settings

# importing vLLM warns a lot about itself
pytestmark = pytest.mark.filterwarnings("ignore")


class FakeClient:
    """Pools a prompt to its token ids when it is let, the last prompt first."""

    def __init__(self, policy: str = "priority", device: str = "cpu", step_tokens: int = 1_000) -> None:
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(policy=policy, max_num_batched_tokens=step_tokens),
            device_config=SimpleNamespace(device_type=device),
        )
        self.renderer = SimpleNamespace(render_cmpl_async=self.render)
        self.requests: dict[str, dict[str, Any]] = {}
        self.tasks: list[object] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.open = asyncio.Event()
        self.fail: int | None = None

    async def encode(self, prompt: Any, params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
        self.requests[request_id] = {"prompt": prompt, "params": params, **more}
        self.tasks.append(asyncio.current_task())
        self.running.add(request_id)
        await self.open.wait()
        await asyncio.sleep(0)
        if self.fail in prompt["prompt_token_ids"]:
            self.running.remove(request_id)
            raise RuntimeError("the engine is ill")
        self.running.remove(request_id)
        yield SimpleNamespace(outputs=SimpleNamespace(data=prompt["prompt_token_ids"]))

    async def until_running(self, count: int) -> None:
        """Wait until so many prompts are pooled at a time."""
        async with asyncio.timeout(10):
            while len(self.running) < count:
                await asyncio.sleep(0)

    async def render(self, prompts: Sequence[Any]) -> list[Any]:
        return [
            {"prompt_token_ids": [*each["prompt_token_ids"], *each["multi_modal_data"]["image"]]} for each in prompts
        ]

    async def abort(self, ids: Sequence[str]) -> None:
        self.aborted += ids
        self.running -= set(ids)


def engine_of(client: FakeClient, **more: Any) -> Any:
    from encoder_plugins.serving.engine import AsyncEngine

    threads = ThreadPoolExecutor(1, thread_name_prefix="compute")
    wanted: Any = client
    return AsyncEngine(wanted, catalog.get("deberta_gliner"), threads, **more)


def prompts(count: int) -> list[Prompt]:
    return [Prompt(token_ids=[number], parameters={"words": b"w"}) for number in range(count)]


async def test_an_image_is_rendered_and_its_tokens_count() -> None:
    client = FakeClient()
    client.open.set()
    counted: list[int] = []
    image: Any = [7, 7, 7, 7]
    sent = [Prompt(token_ids=[1, 2]), Prompt(token_ids=[3, 4], image=image, image_tokens=5)]
    found = await engine_of(client, count_tokens=counted.append).encode(sent)
    assert found == [[1, 2], [3, 4, 7, 7, 7, 7]]
    # its place is one of its tokens
    assert counted == [2 + 6]


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_each_prompt_is_a_request_and_its_tensor_comes_in_its_position(count: int) -> None:
    client = FakeClient()
    client.open.set()
    counted: list[int] = []
    found = await engine_of(client, count_tokens=counted.append).encode(prompts(count))
    assert found == [[number] for number in range(count)]
    assert len(client.requests) == count
    assert sum(counted) == count
    for request in client.requests.values():
        assert request["params"].task == "token_classify"
        assert request["params"].extra_kwargs == {"words": b"w"}
        # vLLM copies parameters deeply
        assert request["params"].clone() is request["params"]
    assert client.aborted == []


async def test_no_client_can_guess_the_id_of_another_request() -> None:
    client = FakeClient()
    client.open.set()
    engine = engine_of(client)
    await engine.encode(prompts(1))
    await engine.encode(prompts(1))
    assert len({id_[:16] for id_ in client.requests}) == 2
    # every line that vLLM logs of a request has it
    assert all(len(id_) < 32 for id_ in client.requests)


@pytest.mark.parametrize("counts", [(1,), (2,), (1, 1), (2, 2), (0, 2), (3, 0, 1)])
async def test_every_part_is_answered_whatever_their_number_and_lengths(counts: tuple[int, ...]) -> None:
    client = FakeClient()
    client.open.set()
    left = iter(prompts(sum(counts)))
    parts = [Part(make=partial(list, itertools.islice(left, count)), size=0) for count in counts]
    assert await engine_of(client).encode_parts(parts) == [[number] for number in range(sum(counts))]
    # each prompt has an id of its own
    assert len(client.requests) == sum(counts)


@pytest.mark.parametrize(("count", "own"), [(1, False), (2, True)])
async def test_only_a_request_of_several_prompts_costs_tasks(count: int, own: bool) -> None:
    client = FakeClient()
    client.open.set()
    await engine_of(client).encode(prompts(count))
    assert len(set(client.tasks)) == count
    assert (asyncio.current_task() not in client.tasks) is own


@pytest.mark.parametrize("count", [1, 200])
async def test_cancelling_aborts_every_prompt(count: int) -> None:
    client = FakeClient()
    task = asyncio.create_task(engine_of(client).encode(prompts(count)))
    await client.until_running(count)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(client.aborted) == set(client.requests)
    assert client.running == set()


async def test_one_failure_aborts_the_others_and_is_raised_itself() -> None:
    client = FakeClient()
    client.fail = 3
    task = asyncio.create_task(engine_of(client).encode(prompts(5)))
    await client.until_running(5)
    client.open.set()
    with pytest.raises(RuntimeError, match="ill"):
        await task
    assert set(client.aborted) == set(client.requests)


async def test_the_engine_has_a_part_while_the_next_one_is_made() -> None:
    client = FakeClient()
    client.open.set()
    counted: list[int] = []
    loop = asyncio.get_running_loop()

    def second() -> list[Prompt]:
        # in a thread, while the first part's prompts are answered
        asyncio.run_coroutine_threadsafe(answered(), loop).result(30)
        return [Prompt(token_ids=[7] * 50)]

    async def answered() -> None:
        async with asyncio.timeout(10):
            while len(client.requests) < 3 or client.running:
                await asyncio.sleep(0)

    engine = engine_of(client, count_tokens=counted.append)
    # by this a processor decides whether it makes parts
    assert engine.concurrent is True
    parts = [Part(make=lambda: prompts(3), size=0), Part(make=second, size=100_000)]
    assert await engine.encode_parts(parts) == [[0], [1], [2], [7] * 50]
    assert counted == [3, 50]
    # a part comes behind what its request has had of the engine by then
    ranks = [request["priority"] for request in client.requests.values()]
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[3] >= ranks[0] + 53 // 10


@pytest.mark.parametrize("fails", [0, 1])
async def test_a_part_that_cannot_be_made_aborts_those_before_it(fails: int) -> None:
    client = FakeClient()

    def refused() -> list[Prompt]:
        raise InvalidRequest("a document is bad", param="documents[3]")

    parts = [Part(make=lambda: prompts(2), size=0)] * fails + [Part(make=refused, size=100_000)]
    with pytest.raises(InvalidRequest) as caught:
        await engine_of(client).encode_parts(parts)
    assert caught.value.param == "documents[3]"
    assert (client.running, set(client.aborted)) == (set(), set(client.requests))


@pytest.mark.parametrize(
    ("step_tokens", "short_tokens", "alone", "window"),
    [(10, 5, True, 20), (10, 5, False, 10), (10, 50, False, 20)],
)
async def test_the_engine_has_two_steps_of_a_request_at_a_time_and_short_ones_beside_others(
    monkeypatch: pytest.MonkeyPatch, step_tokens: int, short_tokens: int, alone: bool, window: int
) -> None:
    monkeypatch.setitem(steps.LONG_TOKENS, "cpu", short_tokens)
    client = FakeClient(step_tokens=step_tokens)
    # of 4 tokens each; one is longer than two steps
    sent = [Prompt(token_ids=[number] * 4) for number in range(9)]
    sent[6] = Prompt(token_ids=[6] * 25)
    parts = [Part(make=lambda: sent[:2], size=0), Part(make=lambda: sent[2:], size=0)]
    # without a count of requests, each has the engine to itself
    engine = engine_of(client) if alone else engine_of(client, is_alone=lambda: False)
    task = asyncio.create_task(engine.encode_parts(parts))
    await client.until_running(window // 4)
    most = [0, 0]
    async with asyncio.timeout(10):
        while not task.done():
            tokens = [len(client.requests[id_]["prompt"]["prompt_token_ids"]) for id_ in client.running]
            assert sum(tokens) <= window or tokens == [25]
            most = max(most, [sum(tokens), len(tokens)])
            client.open.set()
            await asyncio.sleep(0)
            client.open.clear()
    assert most == [25, 1]
    assert await task == [prompt.token_ids for prompt in sent]
    # in their order
    assert [request["prompt"]["prompt_token_ids"][0] for request in client.requests.values()] == list(range(9))


@pytest.mark.parametrize("cancelled", [True, False])
async def test_prompts_that_wait_for_others_never_come_once_a_request_has_ended(cancelled: bool) -> None:
    client = FakeClient(step_tokens=1)
    client.fail = None if cancelled else 1
    task = asyncio.create_task(engine_of(client).encode(prompts(50)))
    await client.until_running(2)
    if cancelled:
        task.cancel()
    client.open.set()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError if cancelled else RuntimeError):
            await task
    assert (client.running, len(client.requests)) == (set(), 2)
    assert set(client.requests) <= set(client.aborted)


async def test_an_adapter_is_found_by_its_name() -> None:
    client = FakeClient()
    client.open.set()
    await engine_of(client, adapters={"a": "request for a"}).encode(prompts(1), lora="a")
    (request,) = client.requests.values()
    assert request["lora_request"] == "request for a"


async def test_work_is_done_inline_where_it_is_short_and_else_in_a_thread() -> None:
    from encoder_plugins.serving.engine import INLINE_MICROSECONDS

    engine = engine_of(FakeClient())
    own = threading.current_thread().name
    assert await engine.compute(lambda: threading.current_thread().name, size=INLINE_MICROSECONDS) == own
    # 10 ms on the event loop would be seen by every other request
    for size in (INLINE_MICROSECONDS + 1, 10_000):
        assert (await engine.compute(lambda: threading.current_thread().name, size=size)).startswith("compute")
    with ThreadPoolExecutor(1, thread_name_prefix="images") as threads:
        found = await engine.compute(lambda: threading.current_thread().name, size=10_000, threads=threads)
    assert found.startswith("images")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from (time in ms, tokens) to a request's priority."""
    from encoder_plugins.serving import engine

    def priority(milliseconds: int, tokens: int) -> int:
        monkeypatch.setattr("encoder_plugins.serving.engine.time.monotonic", lambda: milliseconds / 1000)
        return engine.priority(tokens)

    return priority


def test_a_short_request_comes_before_a_long_one_that_was_there(order: Any) -> None:
    assert order(1_000, 20) < order(500, 50_000)


def test_a_long_one_is_not_overtaken_for_ever(order: Any) -> None:
    long = order(0, 50_000)
    assert order(4_000, 20) < long < order(6_000, 20)


def test_requests_of_one_length_keep_their_order(order: Any) -> None:
    assert order(10, 100) < order(11, 100)


@pytest.mark.parametrize(("lengths", "rank"), [((9,), 5_000), ((10,), 5_001), ((500, 500), 5_100)])
async def test_a_request_comes_later_by_a_millisecond_for_ten_tokens(
    lengths: tuple[int, ...], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    client.open.set()
    engine = engine_of(client)
    monkeypatch.setattr("encoder_plugins.serving.engine.time.monotonic", lambda: 5.0)
    await engine.encode([Prompt(token_ids=[1] * length) for length in lengths])
    assert {request["priority"] for request in client.requests.values()} == {rank}


@pytest.mark.parametrize(
    ("device", "lengths", "expected"),
    [
        ("cpu", (2_048,), [None]),
        ("cpu", (2_049,), ["long"]),
        ("cpu", (1_000, 1_048), ["unknown", None]),
        # what was sent before the request was known to be long has no mark of it
        ("cpu", (1_000, 1_049, 5), ["unknown", "long", "long"]),
        ("cuda", (8_192,), [None]),
        ("cuda", (8_193,), ["long"]),
    ],
)
async def test_the_scheduler_sees_which_requests_are_long(
    device: str, lengths: tuple[int, ...], expected: list[str | None]
) -> None:
    client = FakeClient(device=device)
    client.open.set()
    parts = [Part(make=lambda length=length: [Prompt(token_ids=[1] * length)], size=0) for length in lengths]  # type: ignore[misc]
    await engine_of(client).encode_parts(parts)
    found = [(request["params"].extra_kwargs or {}).get("request_length") for request in client.requests.values()]
    assert found == expected


async def test_a_prompt_without_parameters_has_none() -> None:
    client = FakeClient()
    client.open.set()
    await engine_of(client).encode([Prompt(token_ids=[1], use_activation=False)])
    (request,) = client.requests.values()
    assert (request["params"].extra_kwargs, request["params"].use_activation) == (None, False)


def test_only_a_prompt_with_an_image_has_one_for_vllm() -> None:
    from encoder_plugins.serving.engine import unprocessed

    image: Any = "an image"
    assert unprocessed(Prompt(token_ids=[1, 2])) == {"prompt_token_ids": [1, 2]}
    expected = {"prompt_token_ids": [1], "multi_modal_data": {"image": "an image"}}
    assert unprocessed(Prompt(token_ids=[1], image=image, image_tokens=3)) == expected


@pytest.mark.parametrize(("served", "names"), [(None, ("/m",)), ("a", ("a",)), (["a", "b"], ("a", "b"))])
def test_a_processor_knows_the_engines_names_length_and_dtype(served: Any, names: tuple[str, ...]) -> None:
    from encoder_plugins.serving.engine import context_of

    model = SimpleNamespace(model="/m", served_model_name=served, max_model_len=7, dtype="torch.bfloat16")
    settings = Settings(plugin="deberta_gliner", limits={"texts": 3}, digest="d")
    wanted: Any = SimpleNamespace(model_config=model)
    expected = ServingContext(
        model=Path("/m"),
        max_model_len=7,
        names=names,
        limits={"texts": 3},
        dtype="bfloat16",
        digest="d",
        label_sets=Path("/label_sets"),
    )
    assert context_of(wanted, settings) == expected
    # what lies beside a model folder that is no part of an artifact is nobody's
    assert context_of(wanted, msgspec.structs.replace(settings, digest="")).label_sets is None


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
async def test_only_an_engine_that_orders_by_priority_gets_one(policy: str) -> None:
    client = FakeClient(policy)
    client.open.set()
    await engine_of(client).encode(prompts(3))
    ranks = {request["priority"] for request in client.requests.values()}
    assert (ranks == {0}) == (policy == "fcfs")
    # of one request, all come at the same time
    assert len(ranks) == 1
