"""Steps of vLLM's real engine with our scheduler: which prompts of short and long requests it computes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints import samples
from encoder_plugins.serving import steps
from encoder_plugins.serving.command import SHORT_STEP_SCHEDULER
from encoder_plugins.serving.tests import in_process

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

# the sample takes 40 tokens
STEP, FOR_LONG = 40, 10
LONG = steps.parameters(FOR_LONG + 1, complete=True, most=FOR_LONG)
BEGUN = steps.parameters(FOR_LONG, complete=False, most=FOR_LONG)
SHORT: dict[str, str] = {}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    sample = next(sample for sample in samples.samples() if sample.name == "sentence_transformer")
    artifact: Path = samples.prepare(sample, tmp_path_factory.mktemp("sample"))
    with pytest.MonkeyPatch.context() as patch, in_process.environment():
        patch.setitem(steps.LONG_TOKENS, "cpu", FOR_LONG)
        yield in_process.start(
            artifact / "model",
            dtype="float32",
            enable_chunked_prefill=False,
            scheduling_policy="priority",
            scheduler_cls=SHORT_STEP_SCHEDULER,
            max_num_batched_tokens=STEP,
        ).llm_engine


def send(engine: Any, prompts: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Send prompts of so many tokens, the first with the lowest priority number."""
    from vllm import PoolingParams

    for priority, (name, (tokens, extra)) in enumerate(prompts.items()):
        params = PoolingParams(task="embed", extra_kwargs=dict(extra) or None)
        engine.add_request(name, {"prompt_token_ids": [5] * tokens}, params, priority=priority)


def step(engine: Any) -> str:
    """Return the names of what the next step computes."""
    return " ".join(sorted(output.request_id for output in engine.step()))


def computed(engine: Any, prompts: Mapping[str, tuple[int, Mapping[str, str]]]) -> list[str]:
    """Send prompts; return the names that each step computed, less steps without any."""
    send(engine, prompts)
    found = []
    while engine.has_unfinished_requests():
        found.append(step(engine))
    return [names for names in found if names]


@pytest.fixture(autouse=True)
def _after_a_short_request(engine: Any) -> None:
    assert computed(engine, {"before": (2, SHORT)}) == ["before"]


def test_while_short_requests_come_steps_have_a_part_of_the_long_ones(engine: Any) -> None:
    prompts = {"a": (2, SHORT), "b": (2, SHORT), "l1": (6, LONG), "l2": (4, LONG), "l3": (6, LONG), "l4": (6, LONG)}
    assert computed(engine, prompts) == ["a b l1 l2", "l3", "l4"]


def test_short_requests_have_every_second_step_for_themselves(engine: Any) -> None:
    send(engine, {"a": (2, SHORT), "l1": (6, LONG), "l2": (6, LONG), "l3": (6, LONG)})
    assert step(engine) == "a l1"
    send(engine, {"b": (2, SHORT), "c": (2, SHORT)})
    assert step(engine) == "b c"
    send(engine, {"d": (2, SHORT)})
    assert [step(engine), step(engine)] == ["d l2", "l3"]


def test_the_bound_changes_how_much_is_computed_and_not_in_which_order(engine: Any) -> None:
    prompts = {"l1": (6, LONG), "l2": (6, LONG), "l3": (6, LONG), "a": (2, SHORT), "b": (3, SHORT)}
    # 15 tokens: the 5 of the short ones, and 10; whose priority comes first is computed first
    assert computed(engine, prompts) == ["l1 l2", "a b l3"]


def test_a_long_prompt_is_computed_whole(engine: Any) -> None:
    assert computed(engine, {"a": (2, SHORT), "l1": (11, LONG), "l2": (12, LONG)}) == ["a l1", "l2"]


@pytest.mark.parametrize("first", ["begun", "long"])
def test_without_short_requests_a_step_takes_all_that_fits(
    engine: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    # none is recent after the tests before
    scheduler = engine.engine_core.engine_core.scheduler
    monkeypatch.setattr(scheduler, "_last_short", float("-inf"))
    prompts = {first: (6, {"begun": BEGUN, "long": LONG}[first])} | {f"l{number}": (6, LONG) for number in range(5)}
    assert computed(engine, prompts) == [" ".join(sorted(prompts))]


def test_where_fewer_tokens_are_enough_a_step_has_no_more_but_for_a_longer_prompt(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.engine_core.engine_core.scheduler, "_enough", 10)
    prompts = {"a": (6, SHORT), "b": (4, SHORT), "c": (3, SHORT), "d": (12, SHORT), "e": (7, SHORT), "f": (4, SHORT)}
    assert computed(engine, prompts) == ["a b", "c", "d", "e", "f"]


def test_nothing_is_kept_of_requests_that_have_ended(engine: Any) -> None:
    computed(engine, {f"l{number}": (6, LONG) for number in range(30)})
    computed(engine, {"a": (2, SHORT)})
    assert engine.engine_core.engine_core.scheduler._long == set()


def test_what_has_ended_is_forgotten_by_the_next_step_and_not_by_one_of_its_own(engine: Any) -> None:
    core = engine.engine_core.engine_core
    (worker,) = engine.engine_core.collective_rpc(lambda worker: worker)
    known = worker.model_runner.requests
    assert computed(engine, {"ended": (2, SHORT)}) == ["ended"]
    assert not core.scheduler.has_requests()
    before = core.scheduler.finished_req_ids
    assert len(before) == len(known) == 1
    assert before == set(known)
    # more than the worker has places for, one after the other
    for number in range(worker.model_runner.max_num_reqs + 1):
        computed(engine, {f"one-{number}": (2, SHORT)})
    assert len(known) == 1


def test_a_step_that_takes_prompts_back_counts_what_waits(engine: Any) -> None:
    scheduler = engine.engine_core.engine_core.scheduler
    send(engine, {"taken-back": (2, SHORT)})
    engine.abort_request(["taken-back"])
    assert scheduler.has_requests()
    engine.step()
    assert not scheduler.has_requests()
    assert not scheduler.finished_req_ids
