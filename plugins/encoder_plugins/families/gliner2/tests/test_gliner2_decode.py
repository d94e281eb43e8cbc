"""Answers, compared with those of the library's own decoder on the same planted scores."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from encoder_plugins.families.gliner2 import chunks, decode, overlaps, words
from encoder_plugins.families.gliner2.decode import Part
from encoder_plugins.families.gliner2.tests import library
from encoder_plugins.families.gliner2.validators import Checker, Matcher

NAMED = (None, "flat", "nested", "longest", "allow", "No-Overlap", "keep_longest", "ALL")


@pytest.mark.parametrize("seed", range(3))
def test_random_scores_give_the_answer_of_the_library(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    cases, ours = [], []
    for _ in range(500):
        schema, text = library.random_schema(rng), library.random_text(rng, 9)
        read, part = library.read(schema), library.whole(text)
        plan = library.plant(numbers, read, part)
        threshold, name = rng.choice([0.3, 0.5, 0.7]), rng.choice(NAMED)
        policy = overlaps.policy_of(name, default="greedy")
        cases.append({"text": text, "schema": schema, "parts": [plan], "threshold": threshold, "overlap_policy": name})
        ours.append((read, library.decoded(read, part, plan, threshold, policy)))
    theirs = library.call("extract_each", cases)
    values = 0
    for case, (read, got), found in zip(cases, ours, theirs, strict=True):
        expected = library.answer_of(read, found)
        assert got == expected, case
        values += sum(map(len, expected.entities.values())) + sum(map(len, expected.structures.values()))
    assert values > 500


def test_long_texts_give_the_answer_of_the_library() -> None:
    rng, numbers = random.Random(7), np.random.default_rng(7)
    cases, ours = [], []
    for _ in range(20):
        schema, text = (
            library.random_schema(rng),
            " ".join(library.random_text(rng, 9) for _ in range(rng.randint(1, 150))),
        )
        read = library.read(schema)
        name = rng.choice(NAMED)
        parts = []
        for start, end in chunks.plan(text, words.split(text)):
            piece = text[start:end]
            parts.append(Part(piece, start, words.split(words.ended(piece)).first(384)))
        plans = [library.plant(numbers, read, part, low=-7.0) for part in parts]
        policy = overlaps.policy_of(name, default="greedy")
        assert policy is not None
        found = [library.decoded(read, part, plan, 0.5, policy) for part, plan in zip(parts, plans, strict=True)]
        cases.append({"text": text, "schema": schema, "parts": plans, "chunks": True, "overlap_policy": name})
        ours.append((read, chunks.merge(read, found, policy)))
    assert max(len(case["parts"]) for case in cases) > 2  # type: ignore[arg-type]
    for case, (read, got), theirs in zip(cases, ours, library.call("extract_each", cases), strict=True):
        assert got == library.answer_of(read, theirs), (case["schema"], case["overlap_policy"])


PATTERNS = (r"[a-z]+", r"\w+\W?", r"i\b", r"^(?=.*o)", r"\d+(\.\d+)?", r"(.).*\1", r"\.$", "ſ|İ|@", r"(?s-i:A.*)")


def test_values_are_those_that_the_library_s_validators_accept() -> None:
    rng, numbers = random.Random(5), np.random.default_rng(5)
    cases, ours, left_out = [], [], 0
    matcher = Matcher()
    for _ in range(300):
        schema, text = library.random_schema(rng), library.random_text(rng, 9)
        fields = [field for structure in schema.get("structures", {}).values() for field in structure["fields"]]
        if "entities" in schema and not isinstance(schema["entities"], list):
            schema["entities"] = {name: {"threshold": 0.3} for name in schema["entities"]}
            fields += schema["entities"].values()
        for field in fields:
            field["validators"] = [
                {
                    "pattern": rng.choice(PATTERNS),
                    "mode": rng.choice(["full", "partial"]),
                    "exclude": rng.random() < 0.3,
                    "flags": rng.choice([["IGNORECASE"], [], ["ASCII", "DOTALL"], ["MULTILINE", "VERBOSE"]]),
                }
                for _ in range(rng.randint(0, 2))
            ]
        read, part = library.read(schema), library.whole(text)
        plan = library.plant(numbers, read, part)
        got = decode.result(read, part, library.found_of(read, plan, 0.25), 0.5, "greedy", Checker(matcher, 60))
        cases.append({"text": text, "schema": copy.deepcopy(schema), "parts": [plan]})
        ours.append((read, got))
        for field in fields:
            del field["validators"]
        left_out += got != library.decoded(library.read(schema), part, plan, 0.5, "greedy")
    matcher.close()
    theirs = library.call("extract_each", cases)
    assert left_out > 100
    for case, (read, got), found in zip(cases, ours, theirs, strict=True):
        assert got == library.answer_of(read, found), case
