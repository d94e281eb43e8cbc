"""Deliberate mistakes in what conversion writes, but for the encoder: each must end in a refusal or in Failed.

The engine tests of the plugins make them, and those of their encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from encoder_plugins.families.retrieval.config import KEY
from encoder_plugins.families.retrieval.conversion import PROJECTION_WEIGHTS
from encoder_plugins.parity.tests.mutants import (
    Change,
    Mutant,
    filled,
    section,
    swapped,
    tokenizer,
    weights,
)


def replaced(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change of fields of an object."""
    return lambda before: {**before, **fields}


def dense(index: int, **fields: Any) -> Change:
    """Return a change of one Dense module's fields."""

    def edit(modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**module, **fields} if number == index else module for number, module in enumerate(modules)]

    return section(KEY, projection=edit)


def prefixes_swapped(prefixes: tuple[str, str]) -> Callable[[dict[str, Any]], None]:
    """Let each prefix have the other's id."""

    def edit(whole: dict[str, Any]) -> None:
        first, second = (token for token in whole["added_tokens"] if token["content"].strip() in prefixes)
        first["content"], second["content"] = second["content"], first["content"]
        # a token that the vocabulary has, too, has the id that it has there
        vocabulary = whole["model"]["vocab"]
        if {*prefixes} <= vocabulary.keys():
            vocabulary[prefixes[0]], vocabulary[prefixes[1]] = vocabulary[prefixes[1]], vocabulary[prefixes[0]]

    return edit


def without_prefixes(prefixes: tuple[str, str]) -> Callable[[dict[str, Any]], None]:
    """Let the prefixes be read as ordinary text."""

    def edit(whole: dict[str, Any]) -> None:
        whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"].strip() not in prefixes]

    return edit


def of_one_dense(prefixes: tuple[str, str] = ("[Q]", "[D]")) -> Iterator[Mutant]:
    """Mistakes in a checkpoint of 32 and 64 tokens, with expansion that nothing attends to, a prefix token and one Dense module."""
    yield Mutant("expansion attended to", section(KEY, expansion=lambda old: {**old, "attend": True}))
    yield Mutant("no expansion", section(KEY, expansion=lambda old: None))
    yield Mutant("expansion one row short", section(KEY, expansion=lambda old: {**old, "length": old["length"] - 1}))
    yield Mutant("expanded by another token", section(KEY, expansion=lambda old: {**old, "token_id": 1}))
    yield Mutant("queries cut one token early", section(KEY, query=lambda old: {**old, "most_tokens": 31}))
    yield Mutant("documents cut one token early", section(KEY, document=lambda old: {**old, "most_tokens": 63}))
    yield Mutant("documents with the prefix of queries", section(KEY, document=replaced(prompt=f"{prefixes[0]} ")))
    yield Mutant("queries without a prefix", section(KEY, query=replaced(prompt="")))
    yield Mutant("the ids of the prefixes swapped", tokenizer(prefixes_swapped(prefixes)))
    yield Mutant("the prefix read as text", tokenizer(without_prefixes(prefixes)))
    yield Mutant("special tokens lost", tokenizer(lambda whole: whole.update(post_processor=None)))
    yield Mutant("skiplist off by one", section(KEY, skiplist=lambda ids: [number + 1 for number in ids]))
    yield Mutant("one word of the skiplist lost", section(KEY, skiplist=lambda ids: ids[1:]))
    yield Mutant("skiplist not applied", section(KEY, document=replaced(skips=False)))
    yield Mutant("skiplist applied to queries", section(KEY, query=replaced(skips=True)))
    yield Mutant("rows not normalised", section(KEY, normalize=lambda old: False))
    yield Mutant("scores divided by rows", section(KEY, similarity=lambda old: "meanmaxsim"))


def of_pylate() -> Iterator[Mutant]:
    """Mistakes in a checkpoint of PyLate's with one Dense module; the tokenizer has tokens for white space."""
    yield from of_one_dense()
    yield Mutant("white space around a text kept", section(KEY, strips=lambda old: False))


def of_attended() -> Iterator[Mutant]:
    """Mistakes in a checkpoint whose queries attend to their expansion."""
    yield Mutant("expansion not attended to", section(KEY, expansion=replaced(attend=False)))
    yield Mutant("no expansion", section(KEY, expansion=lambda old: None))


def of_native() -> Iterator[Mutant]:
    """Mistakes in a checkpoint with three Dense modules, residual branches and a lower bound on queries."""
    yield Mutant(
        "two Dense modules swapped",
        swapped("projection.0.linear.weight", "projection.1.linear.weight", PROJECTION_WEIGHTS),
    )
    yield Mutant(
        "the biases of two Dense modules swapped",
        swapped("projection.0.linear.bias", "projection.1.linear.bias", PROJECTION_WEIGHTS),
    )
    yield Mutant("a residual branch missing", dense(0, residual=False))
    yield Mutant("a residual branch's matrix zero", filled("projection.2.residual.weight", 0.0, PROJECTION_WEIGHTS))
    yield Mutant("the residual branch added before the activation", dense(0, activation="Identity"))
    yield Mutant("another activation", dense(1, activation="ReLU"))
    yield Mutant("a bias dropped", filled("projection.1.linear.bias", 0.0, PROJECTION_WEIGHTS))
    yield Mutant("queries cut where expansion ends", section(KEY, query=replaced(most_tokens=20)))
    yield Mutant("expansion attended to", section(KEY, expansion=lambda old: {**old, "attend": True}))
    yield Mutant("skiplist not applied to queries", section(KEY, query=replaced(skips=False)))
    yield Mutant("rows of the projection reversed", weights(reversed_rows, PROJECTION_WEIGHTS))


def reversed_rows(tensors: dict[str, Any]) -> None:
    """Reverse the dimensions of rows, which no score depends on: it is seen in rows only."""
    for name in ("projection.2.linear.weight", "projection.2.residual.weight"):
        tensors[name] = tensors[name].flip(0)
