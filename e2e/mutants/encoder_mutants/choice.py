"""Chooses the tests that can notice a mutant: pure functions from what the tests did without one."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from encoder_mutants.worker import Trace

# so many tests are named one by one; more of them are run by their files
NAMED = 200


def statement(source: str, line: int) -> range:
    """Return the lines of the innermost statement at a line; of one with a body, those before the body."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        lines = range(node.lineno, max(end, node.lineno) + 1)
        # what is visited later lies deeper
        if line in lines:
            found = lines
    return found


def within_function(source: str, line: int) -> bool:
    """Return whether a line is in the body of a function, and so is executed by those who call it; every other one is by an import."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


def tests(source: str, line: int, traces: Mapping[str, Trace]) -> list[str]:
    """Return the tests to run for a mutant at a line: the fastest first, and after them those that start processes.

    A line that is executed when the module is imported concerns all tests, whichever of them imported it first. Where the list is
    empty, no test executes the line.

    Args:
        source: The module without the mutant.
        line: The mutant's.
        traces: What each test did; the lines that were executed while tests were collected are those of the test named "".
    """
    lines = set(statement(source, line))
    ordered = sorted((test for test in traces if test), key=lambda test: traces[test].seconds)
    if not within_function(source, line) and any(lines & set(trace.lines) for trace in traces.values()):
        return by_files(ordered)
    direct = [test for test in ordered if lines & set(traces[test].lines)]
    indirect = [test for test in ordered if traces[test].processes and test not in set(direct)]
    return by_files([*direct, *indirect])


def by_files(chosen: Sequence[str]) -> list[str]:
    """Return the tests, or their files where there are too many to name."""
    if len(chosen) <= NAMED:
        return list(chosen)
    return list(dict.fromkeys(test.partition("::")[0] for test in chosen))
