"""Which requests the engine takes first: short ones, but not for ever."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from encoder_plugins.serving.http.body import Data

pytestmark = [
    pytest.mark.engine,
    # the processor's module imports vLLM, which warns a lot about itself
    pytest.mark.filterwarnings("ignore"),
]


class Request(Data):
    tokens: int


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from (time in ms, tokens) to what vLLM gets of a request, under a scheduling policy."""
    from encoder_plugins.serving.processor import EncoderProcessor

    class Processor(EncoderProcessor[Request, Request]):
        data_type: ClassVar[type[Data]] = Request

        def prepare(self, data: Request) -> Request:
            return data

        def prompts(self, prepared: Request) -> Sequence[Any]:
            return [{"prompt_token_ids": [1] * prepared.tokens}]

        def pooling_params(self, prepared: Request) -> Any:
            raise NotImplementedError

        def answer(self, prepared: Request, outputs: Sequence[Any]) -> dict[str, Any]:
            raise NotImplementedError

    def admit(milliseconds: int, tokens: int, policy: str = "priority") -> dict[str, Any]:
        model = SimpleNamespace(model="m", served_model_name="m")
        additional = {"encoder": {"plugin": "deberta_gliner"}}
        scheduler = SimpleNamespace(policy=policy)
        config: Any = SimpleNamespace(model_config=model, additional_config=additional, scheduler_config=scheduler)
        made = Processor(config, SimpleNamespace())
        monkeypatch.setattr("encoder_plugins.serving.processor.time.monotonic", lambda: milliseconds / 1000)
        found: dict[str, Any] = made.admit(json.dumps({"data": {"tokens": tokens}}).encode()).body
        return found

    return admit


def test_a_short_request_comes_before_a_long_one_that_was_there(admitted: Any) -> None:
    assert admitted(1_000, 20)["priority"] < admitted(500, 50_000)["priority"]


def test_a_long_one_is_not_overtaken_for_ever(admitted: Any) -> None:
    long = admitted(0, 50_000)["priority"]
    assert admitted(4_000, 20)["priority"] < long < admitted(6_000, 20)["priority"]


def test_requests_of_one_length_keep_their_order(admitted: Any) -> None:
    assert admitted(10, 100)["priority"] < admitted(11, 100)["priority"]


def test_an_engine_that_keeps_the_order_of_arrival_is_told_nothing(admitted: Any) -> None:
    assert admitted(10, 100, policy="fcfs").keys() == {"model", "data"}
