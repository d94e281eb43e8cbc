"""What a request may hold, without a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import processor, request
from encoder_plugins.families.gliner.limits import LIMITS as LIMITS_OF_PLUGINS
from encoder_plugins.families.gliner.request import GlinerLimits, Request
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import texts_of
from encoder_plugins.serving.limits import typed

DEFAULTS = {limit.name: limit.default for limit in LIMITS_OF_PLUGINS}
LIMITS = typed(GlinerLimits, DEFAULTS | {"texts": 3, "characters_per_text": 10, "characters": 20})


def refused(**data: Any) -> tuple[str, str]:
    """Return the path and the sentence of a refusal."""
    with pytest.raises(InvalidRequest) as caught:
        check(bodies.decode(bodies.encode(data), Envelope[Request]).data)
    return caught.value.param, caught.value.message


def check(data: Request) -> tuple[list[str], list[tuple[str, ...]]]:
    texts = list(texts_of(data.text, data.texts, LIMITS, anything=True))
    request.spans_of(data, len(texts))
    return texts, request.labels_of(data, len(texts), LIMITS)


def test_defaults_are_the_library_s() -> None:
    data = Request(text="a", labels=["x"])
    assert (data.threshold, data.flat_ner, data.multi_label, data.return_class_probs) == (0.5, True, False, False)
    assert (data.input_spans, data.overflow) == (None, "refuse")


@pytest.mark.parametrize("threshold", [0, 0.0, 1, 1.0, 0.25])
def test_thresholds_between_0_and_1_are_taken(threshold: float) -> None:
    assert check(Request(text="a", labels=["x"], threshold=threshold)) == (["a"], [("x",)])


@pytest.mark.parametrize("threshold", [-1e-9, 1.0001, True, "0.5", None, [0.5], math.nan, math.inf])
def test_other_thresholds_are_refused(threshold: Any) -> None:
    assert refused(text="a", labels=["x"], threshold=threshold)[0] == "data.threshold"


@pytest.mark.parametrize(
    ("data", "path", "says"),
    [
        ({"labels": ["x"]}, "data.text", "neither text nor texts"),
        ({"text": "a", "texts": ["a"], "labels": ["x"]}, "data.texts", "both"),
        ({"texts": [], "labels": ["x"]}, "data.texts", "at least one"),
        ({"texts": ["a"] * 4, "labels": ["x"]}, "data.texts", "4 texts; the limit is 3"),
        ({"texts": ["a", "b" * 11], "labels": ["x"]}, "data.texts[1]", "11 characters; the limit is 10"),
        ({"text": "b" * 11, "labels": ["x"]}, "data.text", "11 characters"),
        ({"texts": ["b" * 10] * 3, "labels": ["x"]}, "data.texts", "30 characters in all; the limit is 20"),
        ({"texts": ["a", 1], "labels": ["x"]}, "data.texts[1]", "`str`"),
        ({"text": "a"}, "data.labels", "one of labels and labels_per_text"),
        ({"text": "a", "labels": ["x"], "labels_per_text": [["x"]]}, "data.labels_per_text", "both"),
        ({"text": "a", "labels": "x"}, "data.labels", "`array | null`"),
        ({"text": "a", "labels": ["x", "y", None]}, "data.labels[2]", "`str`"),
        ({"text": "a", "labels": ["x", ""]}, "data.labels[1]", "blank"),
        ({"text": "a", "labels": ["x", "y", " \n"]}, "data.labels[2]", "blank"),
        ({"text": "a", "labels": ["x" * 257]}, "data.labels[0]", "257 characters; the limit is 256"),
        ({"text": "a", "labels": [f"x{n}" for n in range(1001)]}, "data.labels", "1001 labels; the limit is 1000"),
        ({"texts": ["a", "b"], "labels_per_text": [["x"]]}, "data.labels_per_text", "1 lists of labels for 2 texts"),
        ({"texts": ["a", "b"], "labels_per_text": [["x"], ["y", ""]]}, "data.labels_per_text[1][1]", "blank"),
        (
            {"texts": ["a", "b"], "labels_per_text": [[f"x{n}" for n in range(600)], [f"y{n}" for n in range(600)]]},
            "data.labels_per_text",
            "1200 different labels",
        ),
        ({"text": "a", "labels": ["x"], "input_spans": [{"start": 0, "end": 1}]}, "data.input_spans[0]", "`array`"),
        ({"text": "a", "labels": ["x"], "input_spans": []}, "data.input_spans", "0 lists of spans for 1 texts"),
        (
            {"text": "a", "labels": ["x"], "input_spans": [[{"start": -1, "end": 1}]]},
            "data.input_spans[0][0].start",
            "0",
        ),
        ({"text": "a", "labels": ["x"], "input_spans": [[{"start": 0}]]}, "data.input_spans[0][0].end", "required"),
        ({"text": "a", "labels": ["x"], "overflow": "cut"}, "data.overflow", "refuse"),
        ({"text": "a", "labels": ["x"], "flat_ner": 1}, "data.flat_ner", "`bool`"),
        ({"text": "a", "labels": ["x"], "flat": True}, "data.flat", "no such field"),
    ],
    ids=str,
)
def test_refusals_name_the_field(data: dict[str, Any], path: str, says: str) -> None:
    assert refused(**data)[0] == path
    assert says in refused(**data)[1]


def test_a_request_may_have_as_many_labels_as_the_limit_for_one_text_and_for_all() -> None:
    names = [f"x{number}" for number in range(DEFAULTS["labels"])]
    assert check(Request(text="a", labels=names))[1] == [tuple(names)]
    each = [names[:600], names[500:]]
    assert check(Request(texts=["a", "b"], labels_per_text=each))[1] == [tuple(labels) for labels in each]


@pytest.mark.parametrize(
    ("language", "languages", "says"),
    [
        ("de", ("fr", "en"), "the language is 'de'; supported: fr, en"),
        ("de", (), "the language is 'de'; this checkpoint splits words of all languages alike"),
        # of a long one the beginning
        ("x" * 33, ("en",), f"the language is '{'x' * 32}'; supported: en"),
    ],
)
def test_a_language_without_a_tokenizer_is_refused(language: str, languages: tuple[str, ...], says: str) -> None:
    request.check_language(Request(text="a"), languages)
    request.check_language(Request(text="a", language="en"), (*languages, "en"))
    with pytest.raises(InvalidRequest) as caught:
        request.check_language(Request(text="a", language=language), languages)
    assert (caught.value.param, caught.value.message) == ("data.language", says)


def test_labels_count_once_at_their_first_place() -> None:
    assert check(Request(texts=["a", "b"], labels=["x", "y", "x", "X", "z", "y"]))[1] == [("x", "y", "X", "z")] * 2
    per_text = Request(texts=["a", "b"], labels_per_text=[["y", "x", "y"], []])
    assert check(per_text)[1] == [("y", "x"), ()]
    assert request.label_path(per_text, 0, "x") == "data.labels_per_text[0][1]"
    assert request.label_path(Request(text="a", labels=["x", "x", "y"]), 0, "y") == "data.labels[2]"


@pytest.mark.parametrize(
    ("about", "limit"),
    [
        ({}, None),
        ({"model_max_length": 512, "truncation_side": "right"}, 512),
        ({"model_max_length": 10**9 - 1}, 10**9 - 1),
        ({"model_max_length": 10**9}, None),
        ({"model_max_length": 10**30}, None),
    ],
)
def test_a_tokenizer_cuts_at_the_right_or_is_refused(tmp_path: Path, about: dict[str, Any], limit: int | None) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    assert processor.read_tokenizer(tmp_path)[1] == limit
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about | {"truncation_side": "left"}))
    with pytest.raises(ValueError, match="at the left"):
        processor.read_tokenizer(tmp_path)


def test_texts_may_be_empty_and_hold_anything() -> None:
    assert check(Request(texts=["", " ", "\x00\u202e"], labels=[]))[0] == ["", " ", "\x00\u202e"]
