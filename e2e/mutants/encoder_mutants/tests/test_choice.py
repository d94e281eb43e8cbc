"""Which tests are run for a mutant: those that execute its statement, and those whose processes may."""

from __future__ import annotations

import pytest

from encoder_mutants import choice
from encoder_mutants.worker import Trace

SOURCE = """LIMIT = 4

def check(
    number,
):
    if (
        number > LIMIT
    ):
        raise ValueError(
            number,
        )
    try:
        return 1
    except ValueError:
        return 2
"""


@pytest.mark.parametrize(
    ("line", "lines"),
    [(1, [1]), (4, [3, 4, 5]), (7, [6, 7, 8]), (10, [9, 10, 11]), (12, [12]), (13, [13]), (14, [14]), (15, [15])],
)
def test_a_statement_is_its_lines_without_its_body(line: int, lines: list[int]) -> None:
    assert list(choice.statement(SOURCE, line)) == lines


TRACES = {
    "": Trace(0.0, [1, 3], False),
    "a::slow": Trace(2.0, [6, 9], False),
    "a::fast": Trace(0.1, [6], False),
    "b::process": Trace(0.5, [], True),
    "b::other": Trace(0.2, [12, 13], False),
}


@pytest.mark.parametrize(
    ("line", "tests"),
    [
        # executed by every import of the module
        (1, ["a::fast", "b::other", "b::process", "a::slow"]),
        (7, ["a::fast", "a::slow", "b::process"]),
        (10, ["a::slow", "b::process"]),
        (15, ["b::process"]),
    ],
)
def test_tests_of_a_line_are_the_fastest_first_and_processes_last(line: int, tests: list[str]) -> None:
    assert choice.tests(SOURCE, line, TRACES) == tests


def test_what_an_import_executes_concerns_all_tests_whichever_of_them_imports_first() -> None:
    late = {**TRACES, "": Trace(0.0, [], False), "a::slow": Trace(2.0, [1, 3, 6, 9], False)}
    every = ["a::fast", "b::other", "b::process", "a::slow"]
    # the constant, and the head of the function; not the line that the first call executes
    assert [choice.tests(SOURCE, line, late) for line in (1, 4, 10)] == [every, every, ["a::slow", "b::process"]]


def test_a_line_that_no_test_executes_has_none() -> None:
    traces = {test: trace for test, trace in TRACES.items() if not trace.processes}
    assert choice.tests(SOURCE, 15, traces) == []


def test_many_tests_are_run_by_their_files() -> None:
    many = [f"{name}::{number}" for number in range(choice.NAMED) for name in "ab"]
    assert choice.by_files(many) == ["a", "b"]
    assert choice.by_files(many[: choice.NAMED]) == many[: choice.NAMED]
