"""Each decision of the decoder in a case of its own: with planted probabilities, the library's answer and ours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from encoder_plugins.families.gliner2 import overlaps
from encoder_plugins.families.gliner2.request import Result, Value
from encoder_plugins.families.gliner2.tests import library

TEXT = "Ada met Bob in Rome ."
P = {"entities": ["p"]}
R = {"relations": ["r"]}
ITEM = {"structures": {"it": {"fields": [{"name": "a", "dtype": "str"}, {"name": "b"}]}}}
CHOICE = {"structures": {"it": {"fields": [{"name": "st", "dtype": "str", "choices": ["x", "y"]}]}}}
CHOICES = {"structures": {"it": {"fields": [{"name": "st", "choices": ["x", "y"]}]}}}
X, Y = 4, 6
"""The words of the choices in ``( it: st ( x | y ) )``."""

Places = dict[tuple[int, str, int, int], float]


def task(**options: Any) -> dict[str, Any]:
    return {"classifications": [{"task": "t", "labels": ["a", "b", "c"], **options}]}


@dataclass(frozen=True)
class Case:
    """What is planted, and what is answered.

    Attributes:
        name: What the case shows.
        schema: In the form of ``Schema.from_dict``.
        expected: The answer without offsets; a value is its text, of a record's field, or text and score.
        places: The probability of (step, field, first word, last word); words of the prefix count. Others have none.
        count: The predicted count of instances.
        logits: Of the labels of the classification.
        text: The text.
        threshold: Of the request.
        policy: Of overlaps, by the library's name.
        same: Whether the library gives the same answer; else the page lists why not.
    """

    name: str
    schema: dict[str, Any]
    expected: Any
    places: Places = field(default_factory=dict)
    count: int = 1
    logits: tuple[float, ...] = ()
    text: str = TEXT
    threshold: float = 0.5
    policy: str | None = None
    same: bool = True


CROWD: Places = {(0, "p", 0, 0): 0.8, (0, "p", 0, 2): 0.85, (0, "p", 2, 2): 0.8}
CROSSING: Places = {(0, "p", 0, 2): 0.6, (0, "p", 2, 2): 0.9, (0, "p", 1, 3): 0.7}
TWO_BOBS: Places = {(0, "p", 0, 0): 0.7, (0, "p", 2, 2): 0.8}

CASES = [
    Case("a probability that is the threshold counts", P, {"p": ["Ada"]}, {(0, "p", 0, 0): 0.5}),
    Case("thresholds are compared as float32", P, {"p": ["Ada"]}, {(0, "p", 0, 0): 0.5}, threshold=0.5 + 1e-9),
    Case("the best comes first", P, {"p": ["Bob", "Ada"]}, {(0, "p", 0, 0): 0.6, (0, "p", 2, 2): 0.9}),
    Case("a better span wins over two in it", P, {"p": ["Ada met Bob"]}, CROWD),
    Case("flat: the largest sum wins", P, {"p": ["Ada", "Bob"]}, CROWD, policy="flat"),
    Case(
        "longest: what lies within another is dropped",
        P,
        {"p": ["Ada met Bob"]},
        {(0, "p", 0, 0): 0.9, (0, "p", 0, 2): 0.6, (0, "p", 2, 2): 0.9},
        policy="longest",
    ),
    Case(
        "longest: crossing spans both stay",
        P,
        {"p": ["met Bob", "Ada met"]},
        {(0, "p", 0, 1): 0.6, (0, "p", 1, 2): 0.9},
        policy="keep-longest",
    ),
    Case("nested: only what crosses is dropped", P, {"p": ["Bob", "met Bob in"]}, CROSSING, policy="nested"),
    Case("allow: all stay", P, {"p": ["Bob", "met Bob in", "Ada met Bob"]}, CROSSING, policy="ALL"),
    *(
        Case(
            f"a better span wins over a larger sum ({policy})",
            P,
            {"p": ["met Bob in"]},
            {(0, "p", 1, 3): 0.7, (0, "p", 0, 1): 0.6, (0, "p", 2, 4): 0.6},
            policy=policy,
        )
        for policy in ("nested", None)
    ),
    Case(
        "of equal scores the earlier, then the narrower span wins",
        P,
        {"p": ["Ada", "met"]},
        {(0, "p", 0, 1): 0.7, (0, "p", 0, 0): 0.7, (0, "p", 1, 1): 0.7},
    ),
    Case(
        "flat: of equal sums the earlier wins",
        P,
        {"p": ["Ada met"]},
        {(0, "p", 0, 1): 0.75, (0, "p", 1, 2): 0.75},
        policy="flat",
    ),
    Case(
        "types are independent of each other",
        {"entities": ["p", "q"]},
        {"p": ["Ada"], "q": ["Ada"]},
        {(0, "p", 0, 0): 0.7, (0, "q", 0, 0): 0.9},
    ),
    Case(
        "a type's threshold is used instead of the request's",
        {"entities": {"p": {"threshold": 0.9}, "q": {}}},
        {"p": [], "q": ["Ada"]},
        {(0, "p", 0, 0): 0.7, (0, "q", 0, 0): 0.7},
    ),
    Case(
        "str: the best, or none",
        {"entities": {"p": {"dtype": "str"}, "q": {"dtype": "str"}}},
        {"p": ["Bob"], "q": []},
        {(0, "p", 0, 0): 0.6, (0, "p", 2, 2): 0.7},
    ),
    Case("equal texts at two places are two", P, {"p": ["bob", "Bob"]}, TWO_BOBS, text="Bob met bob ."),
    Case("a count of 0 means that there is none", P, {"p": []}, {(0, "p", 0, 0): 0.9}, count=0),
    Case("only the first step has entities", P, {"p": ["Ada"]}, {(0, "p", 0, 0): 0.9}, count=3),
    Case("the appended full stop is cut off", P, {"p": ["met"]}, {(0, "p", 1, 2): 0.9}, text="Ada met", same=False),
    Case(
        "so is white space before it",
        P,
        {"p": ["met"]},
        {(0, "p", 1, 1): 0.9, (0, "p", 1, 2): 0.8},
        text="Ada met\r\n",
        policy="allow",
        same=False,
    ),
    Case("the appended full stop alone is nothing", P, {"p": []}, {(0, "p", 2, 2): 0.9}, text="Ada met", same=False),
    Case(
        "an address at the end holds the appended full stop",
        P,
        {"p": ["www.x.y"]},
        {(0, "p", 1, 1): 0.9},
        text="see www.x.y",
        same=False,
    ),
    Case(
        "addresses and handles are words",
        P,
        {"p": ["ada@b.org", "@ada_b", "https://x.y/?q=1."]},
        {(0, "p", 0, 0): 0.9, (0, "p", 2, 2): 0.8, (0, "p", 3, 3): 0.7},
        text="ada@b.org or @ada_b https://x.y/?q=1.",
    ),
    Case("marks belong to words", P, {"p": ["क्षि"]}, {(0, "p", 1, 1): 0.9}, text="(क्षि e\u0301a)."),
    Case("offsets are not those of lower case", P, {"p": ["Iğdır"]}, {(0, "p", 3, 3): 0.9}, text="İİ'İ Iğdır."),
    Case(
        "a relation has the best head and tail of each step",
        R,
        {"r": [("Rome", "Bob"), ("Ada", "Rome")]},
        {
            (0, "head", 0, 0): 0.6,
            (0, "head", 4, 4): 0.7,
            (0, "tail", 2, 2): 0.8,
            (1, "head", 0, 0): 0.9,
            (1, "tail", 4, 4): 0.9,
        },
        count=2,
    ),
    Case("a relation needs both", R, {"r": []}, {(0, "head", 0, 0): 0.9}),
    Case(
        "equal relations repeat",
        R,
        {"r": [("Ada", "Bob")] * 2},
        {(step, end, at, at): 0.9 for step in (0, 1) for end, at in (("head", 0), ("tail", 2))},
        count=2,
    ),
    Case(
        "a relation with a description is answered by its name and threshold",
        {"relations": {"r": {"description": "says", "threshold": 0.8}}},
        {"r": [("Ada", "Bob")]},
        {(0, "head", 0, 0): 0.9, (0, "tail", 2, 2): 0.9},
        threshold=0.95,
        same=False,
    ),
    Case(
        "a count of 19",
        R,
        {"r": [("Ada", "Bob")]},
        {(18, "head", 0, 0): 0.9, (18, "tail", 2, 2): 0.9},
        count=19,
    ),
    Case(
        "a record has one value of str, all of list",
        ITEM,
        {"it": [{"a": "Ada", "b": ["Rome", "Bob"]}, {"a": "Rome", "b": []}]},
        {(0, "a", 0, 0): 0.9, (0, "b", 2, 2): 0.6, (0, "b", 4, 4): 0.8, (1, "a", 4, 4): 0.7},
        count=2,
    ),
    Case("empty records are dropped", ITEM, {"it": [{"a": "Rome", "b": []}]}, {(1, "a", 4, 4): 0.7}, count=3),
    Case("nothing above the threshold is no record", ITEM, {"it": []}, {(0, "a", 4, 4): 0.4}),
    Case("a count of 0 is no record", ITEM, {"it": []}, count=0),
    Case("the better choice", CHOICE, {"it": [{"st": "y"}]}, {(0, "st", X, X): 0.6, (0, "st", Y, Y): 0.8}),
    Case("of equal choices the first", CHOICE, {"it": [{"st": "x"}]}, {(0, "st", X, X): 0.8, (0, "st", Y, Y): 0.8}),
    Case("all choices in order", CHOICES, {"it": [{"st": ["x", "y"]}]}, {(0, "st", X, X): 0.6, (0, "st", Y, Y): 0.8}),
    Case("no choice below the threshold", CHOICE, {"it": []}, {(0, "st", X, X): 0.4}),
    Case("a part of the text is not a choice", CHOICE, {"it": []}, {(0, "st", 9, 9): 0.9}),
    Case("one label whatever its score", task(cls_threshold=0.9), {"t": [("b", 0.3559)]}, logits=(0.1, 0.2, 0.1)),
    Case("of equal labels the first", task(), {"t": [("a", 0.4223)]}, logits=(1, 1, 0)),
    Case(
        "several labels in their order", task(multi_label=True), {"t": [("a", 0.5), ("c", 0.8808)]}, logits=(0, -1, 2)
    ),
    Case("at least the best label", task(multi_label=True), {"t": [("b", 0.2689)]}, logits=(-3, -1, -2)),
    Case(
        "the best labels first",
        task(multi_label=True, top_k=2),
        {"t": [("b", 0.9526), ("c", 0.8808)]},
        logits=(1, 3, 2),
    ),
    Case(
        "several labels that add up to 1",
        task(multi_label=True, class_act="softmax", cls_threshold=0.3),
        {"t": [("b", 0.6652)]},
        logits=(1, 3, 2),
    ),
]


def plain(answer: Result) -> dict[str, Any]:
    """Return an answer as ``Case.expected`` has it."""

    def of(value: Any) -> Any:
        return (
            [of(part) for part in value]
            if isinstance(value, list)
            else value.text
            if isinstance(value, Value)
            else value
        )

    made: dict[str, Any] = {name: [item.text for item in found] for name, found in answer.entities.items()}
    made |= {name: [(item.head.text, item.tail.text) for item in found] for name, found in answer.relations.items()}
    made |= {
        name: [{key: of(value) for key, value in record.items()} for record in found]
        for name, found in answer.structures.items()
    }
    return made | {
        name: [(label.label, round(label.score, 4)) for label in found]
        for name, found in answer.classifications.items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_to_planted_probabilities(case: Case) -> None:
    schema, part = library.read(case.schema), library.whole(case.text)
    scores = []
    for span in schema.spans:
        names = [member.name for member in span.fields]
        steps = 1 if span.kind == "entities" else max(case.count, 1)
        words = len(schema.prefix) + len(part.words)
        logits = np.full((steps, len(names), words, library.WIDTHS), -20, np.float32)
        for (step, name, first, last), probability in case.places.items():
            logits[step, names.index(name), first, last - first] = math.log(probability / (1 - probability))
        logits[..., np.arange(words)[:, None] + np.arange(library.WIDTHS) >= words] = -np.inf
        scores.append(logits)
    plan = {
        "counts": [case.count] * len(schema.spans),
        "scores": scores,
        "labels": [np.array(case.logits, np.float32)] * len(schema.classes),
    }
    policy = overlaps.policy_of(case.policy, default="greedy")
    assert policy is not None
    ours = library.decoded(schema, part, plan, case.threshold, policy)
    assert plain(ours) == case.expected
    every = [item for found in ours.entities.values() for item in found]
    assert [case.text[item.start : item.end] for item in every] == [item.text for item in every]
    theirs = library.call(
        "extract", case.text, case.schema, [plan], threshold=case.threshold, overlap_policy=case.policy
    )
    assert (library.answer_of(schema, theirs) == ours) is case.same
