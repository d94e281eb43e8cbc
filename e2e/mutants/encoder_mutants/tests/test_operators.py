"""Each operator makes the change that its examples show, and the places that are left alone stay as they are."""

from __future__ import annotations

import pytest
from cosmic_ray.mutating import mutate_code

from encoder_mutants import mutants
from encoder_mutants.mutants import Mutant
from encoder_mutants.operators import (
    OPERATORS,
    ConditionIsFalse,
    ConditionIsTrue,
    DropStatement,
    ExceptionReplacer,
    Hundredfold,
)

OURS = (ConditionIsFalse, ConditionIsTrue, DropStatement, ExceptionReplacer, Hundredfold)
EXAMPLES = [pytest.param(o, e, id=f"{o.__name__}-{n}") for o in OURS for n, e in enumerate(o.examples())]


@pytest.mark.parametrize(("operator", "example"), EXAMPLES)
def test_an_operator_changes_its_examples(operator: type, example: object) -> None:
    before, after, occurrence = example.pre_mutation_code, example.post_mutation_code, example.occurrence  # type: ignore[attr-defined]
    assert mutate_code(before, operator(), occurrence) == after


def changed(source: str, operator: str) -> list[str]:
    return [mutant.source(source) for mutant in mutants.mutants(source) if mutant.operator == operator]


def test_filters_keep_everything() -> None:
    assert changed("x = [a for a in b if a]\n", "ConditionIsTrue") == ["x = [a for a in b if True]\n"]
    assert changed("x = [a for a in b if a]\n", "ConditionIsFalse") == []


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""\n',
        "if TYPE_CHECKING:\n    import a\n",
        'log.info("a message")\n',
        "x: int | None = None\n",
        "def f(a: list[str], *, b: str) -> None: ...\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
    ],
)
def test_what_no_test_could_notice_is_left_alone(source: str) -> None:
    assert mutants.mutants(source) == []


def test_every_kind_of_mistake_is_made() -> None:
    source = """
LIMIT = 4
def f(items, strict=True):
    for item in items:
        if item is not None and item < LIMIT:
            os.fsync(item + 1)
            continue
        try:
            raise ValueError
        except ValueError:
            break
"""
    found = {mutant.operator for mutant in mutants.mutants(source)}
    assert found == {
        "AndWithOr",
        "Add_Sub",
        "BreakWithContinue",
        "ConditionIsFalse",
        "ConditionIsTrue",
        "ContinueWithBreak",
        "DropStatement",
        "ExceptionReplacer",
        "Hundredfold",
        "IsNot_Is",
        "Lt_LtE",
        "TrueWithFalse",
        "ZeroIterationForLoop",
    }
    assert found < set(OPERATORS)


def test_mutants_know_their_line() -> None:
    source = "a = 1\nif a:\n    check()\n"
    found = mutants.mutants(source)
    assert [(m.operator, m.line, m.text) for m in found] == [
        ("Hundredfold", 1, "a = 1"),
        ("ConditionIsFalse", 2, "if a:"),
        ("ConditionIsTrue", 2, "if a:"),
        ("DropStatement", 3, "check()"),
    ]
    # the asterisk of the parameters is no product, and yet counts when the place is found again
    source = "def f(*, a): return a * 3\n"
    assert changed(source, "Mul_Div") == ["def f(*, a): return a / 3\n"]


def test_a_mutant_has_a_diff() -> None:
    source = "if a:\n    check()\n"
    found = mutants.mutants(source)
    assert "-    check()\n+    pass\n" in found[-1].diff(source, "module.py")


def test_a_place_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such place"):
        Mutant("Hundredfold", 1, 1, "").source("a = 1\n")


def test_a_sample_is_the_same_each_time() -> None:
    found = mutants.mutants("".join(f"a = {number}\n" for number in range(50)))
    chosen = mutants.sample(found, 10, "module.py")
    assert chosen == mutants.sample(found, 10, "module.py")
    assert chosen != mutants.sample(found, 10, "module.py", seed=1)
    assert len(chosen) == 10
    assert chosen == sorted(chosen, key=lambda mutant: mutant.line)
    assert mutants.sample(found, None, "module.py") == mutants.sample(found, 50, "module.py") == found
