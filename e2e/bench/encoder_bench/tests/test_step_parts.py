"""The clock of a step's parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from encoder_bench import step_parts
from encoder_bench.step_parts import ADD, FORWARD, OTHER, POOLER, WAIT, Clock


class Engine:
    """An object of an engine whose methods take a known time by a clock of the test's."""

    def __init__(self, moment: list[float], **more: Any) -> None:
        self.moment = moment
        self.more = more

    def add_request(self) -> None:
        self.moment[0] += 5

    def step(self) -> None:
        self.moment[0] += 20
        self.more["model"].forward()
        self.moment[0] += 2

    def forward(self) -> None:
        self.moment[0] += 10


def test_a_part_counts_without_the_parts_that_it_calls() -> None:
    moment = [0.0]
    model = Engine(moment, pooler=Engine(moment))
    engine = Engine(moment, model=model)
    own: Any = engine
    own.engine_core, vars(model)["pooler"] = None, model.more["pooler"]
    clock = Clock(lambda: moment[0])
    worker = SimpleNamespace(model_runner=SimpleNamespace())
    with step_parts.watched(engine, worker, model, clock):
        engine.add_request()
        engine.step()
        # between two steps nothing is counted
        moment[0] += 100
        model.more["pooler"].forward()
    found = clock.take()
    assert (found[ADD], found[OTHER], found[FORWARD], found[POOLER], found[WAIT]) == (5, 22, 10, 10, 0)
    assert sum(clock.take().values()) == 0
    # nothing stays replaced
    assert not {"step", "add_request", "forward"} & {*vars(engine), *vars(model), *vars(model.more["pooler"])}


def test_the_table_has_a_line_for_a_step_and_one_for_a_text() -> None:
    clock = Clock()
    seconds = {**clock.take(), ADD: 0.0008, FORWARD: 0.0016}
    lines = list(step_parts.table("texts", {8: seconds}))
    assert lines[2].startswith("| 8 | a step | 2400 | 800 |")
    assert lines[3].startswith("| 8 | a text | 300 | 100 |")
