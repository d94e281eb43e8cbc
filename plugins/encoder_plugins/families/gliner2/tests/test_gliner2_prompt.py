"""Words, token ids and positions, compared with those of the library's own processor."""

from __future__ import annotations

import random

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner2 import words
from encoder_plugins.families.gliner2.prompt import PromptBuilder
from encoder_plugins.families.gliner2.tests import library

LETTERS = "ab.@_-% +İé/:wWhtps1ſ\u212a\u0301\u200d\n "
TEXTS = (
    "",
    "  ",
    "see http://",
    "see https://x.y/z?q=1.",
    "write to Ada.B%c@x-y.co.uk, or @ada_b",
    "क्षि, İstanbul'da e\u0301a; foo_bar-baz--q",
    "a@b.c1 a@@b.cd .@.de x.y@z.éa",
)


def test_words_and_offsets_are_those_of_the_library() -> None:
    rng = random.Random(1)
    texts = [*TEXTS, *("".join(rng.choices(LETTERS, k=rng.randint(0, 30))) for _ in range(3_000))]
    texts += [text.replace("w", "www.").replace("h", "http://") for text in texts[:500]]
    for text in texts:
        found = words.split(text)
        assert list(zip(found.tokens, found.starts, found.ends, strict=True)) == library.call("split", text), text


def test_a_text_that_may_be_an_address_at_every_character_is_split_in_one_pass() -> None:
    # the library's expression would need a minute for each of them
    assert len(words.split("a." * 100_000 + "@")) == 200_001
    assert len(words.split("@a." * 60_000)) == 120_000


def test_tokens_and_positions_are_those_of_the_library() -> None:
    rng = random.Random(2)
    builder = PromptBuilder(library.tokenizer())
    pairs = [(rng.choice([*TEXTS, library.random_text(rng, 12)]), library.random_schema(rng)) for _ in range(400)]
    for (text, schema), expected in zip(pairs, library.call("prompts", pairs), strict=True):
        read = library.read(schema)
        prompt = builder.schema(read)
        tokens, positions = builder.build(prompt, builder.pieces(words.split(words.ended(text)).tokens))
        assert tokens == expected["tokens"]
        # where the library's position is behind the prompt, its model fails
        assert positions.tolist() == [min(position, len(tokens) - 1) for position in expected["words"]]
        assert list(read.prefix) == expected["prefix"]
        assert [task.kind.replace("structures", "json_structures") for task in read.spans] == expected["kinds"][
            : len(read.spans)
        ]
        assert prompt.spans == expected["tasks"][: len(read.spans)]
        assert prompt.classes == [task[1:] for task in expected["tasks"][len(read.spans) :]]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"entities": ["a", "b [SEP_TEXT]"]}, "data.schema.entities.b [SEP_TEXT]"),
        ({"entities": {"a": "or [P]"}}, "data.schema.entities.a"),
        ({"relations": ["[CLS]"]}, "data.schema.relations.[CLS]"),
        ({"entities": ["[UNK]"]}, "data.schema.entities.[UNK]"),
        ({"classifications": [{"task": "t", "labels": ["a", "[MASK]"]}]}, "data.schema.classifications[0].labels[1]"),
        (
            {"classifications": [{"task": "t", "labels": ["a", "b"], "examples": [["[OUTPUT]", "a"]]}]},
            "data.schema.classifications[0].examples[0][0]",
        ),
        (
            {"structures": {"s": {"fields": [{"name": "f", "choices": ["[E]"]}]}}},
            "data.schema.structures.s.fields[0].choices[0]",
        ),
    ],
)
def test_a_string_that_holds_a_marker_is_refused(data: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidRequest, match="means something to the model") as caught:
        PromptBuilder(library.tokenizer()).schema(library.read(data))
    assert caught.value.param == path


def test_characters_that_the_vocabulary_lacks_are_served() -> None:
    builder = PromptBuilder(library.tokenizer())
    (expected,) = library.call("prompts", [("Ada.", {"entities": ["\U0001f980"]})])
    prompt = builder.schema(library.read({"entities": ["\U0001f980"]}))
    assert builder.build(prompt, builder.pieces(["ada", "."]))[0] == expected["tokens"]
