"""Which tokens a text becomes, which of them are attended to and which have a row: equal to the library's, for every form."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.families.retrieval.cases import TEXTS
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.retrieval.tokens import TextTokenizer
from encoder_plugins.models.moderncolbert.checkpoint import CHECKPOINT
from encoder_plugins.models.moderncolbert.tests import tiny

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

ORACLE = "encoder_plugins.families.retrieval.tests.oracle:tokens"
FURTHER = [
    # each word of the skiplist alone, and beside a word
    *string.punctuation,
    *(f"word{mark} {mark}word" for mark in string.punctuation),
    # as long as a query of each checkpoint has tokens, and one more or less: every number of tokens is met
    *("a " * count for count in range(1, 70)),
    # empty once white space is stripped
    "\u00a0\u3000",
    "\n",
    # text that contains the markers, with and without their spaces
    "[Q]",
    "[D] text of a document",
    "[Q] [D] [MASK]",
    "[MASK] [MASK]",
    "a[SEP]b",
    "日本語のテキスト" * 20,
    "😀" * 40,
]


FEW = [TEXTS[name] for name in ("question", "space", "whitespace-around", "markers", "three-hundred-words")]


@pytest.mark.parametrize("name", [one.name for one in tiny.TINY])
def test_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    published, model = tiny.build(name, tmp_path), tmp_path / "model"
    model.mkdir()
    CHECKPOINT.convert(published, {}, model)
    config = read_served(model)
    tokenizer = TextTokenizer(model, config)
    texts = [*TEXTS.values(), *FURTHER]
    lengths = set()
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected: list[Any] = library_answer("sentence_transformers", ORACLE, str(published), texts, kind)
        for text, found, (ids, attended, kept) in zip(texts, tokenizer(texts, kind), expected, strict=True):
            assert found.ids == ids, (kind, text)
            # keys are the first tokens, as the engine's marks need it
            assert attended == [1] * found.keys + [0] * (len(ids) - found.keys), (kind, text)
            rows = np.ones(len(ids), bool) if found.kept is None else found.kept
            assert rows.tolist() == kept, (kind, text)
            assert found.rows == sum(kept)
            lengths.add((kind, len(ids), found.keys))
        for prompt_name, prompt in config.prompts.items():
            expected = library_answer("sentence_transformers", ORACLE, str(published), FEW, kind, prompt_name)
            for text, found, (ids, _, _) in zip(FEW, tokenizer(FEW, kind, prompt), expected, strict=True):
                assert found.ids == ids, (kind, prompt_name, text)
    assert {"query", "document"} <= config.prompts.keys()
    # the texts were long and short enough for every length to be met
    assert len(lengths) > 40


def test_a_prefix_is_a_token_and_its_lower_case_is_none_where_texts_are_lower_cased(tmp_path: Path) -> None:
    published, model = tiny.build("pylate", tmp_path), tmp_path / "model"
    model.mkdir()
    transformer = published / "sentence_bert_config.json"
    transformer.write_text(json.dumps({**json.loads(transformer.read_text()), "do_lower_case": True}))
    CHECKPOINT.convert(published, {}, model)
    tokenizer = TextTokenizer(model, read_served(model))
    texts = ["[q] what", "[Q] What", "THE Fox [d] x [D] y"]
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected: list[Any] = library_answer("sentence_transformers", ORACLE, str(published), texts, kind)
        assert [found.ids for found in tokenizer(texts, kind)] == [ids for ids, _, _ in expected]
