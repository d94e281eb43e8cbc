"""Which text is put before a text, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.prompts import Prompts, with_title

PROMPTS = Prompts(
    texts={"query": "q: ", "document": "title: none | text: ", "STS": "s: "},
    default="STS",
)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, "s: "),
        ({"prompt_name": "query"}, "q: "),
        ({"input_type": "query"}, "q: "),
        ({"input_type": "document"}, "title: none | text: "),
        ({"prompt": "own "}, "own "),
        ({"prompt": ""}, ""),
    ],
    ids=str,
)
def test_a_prompt_is_chosen_by_one_field_or_by_none(choice: dict[str, Any], expected: str) -> None:
    assert PROMPTS.choose(**choice) == expected


def test_without_a_default_nothing_is_put_before_a_text() -> None:
    assert Prompts(texts={"query": "q: "}).choose() == ""


def test_a_document_has_the_first_prompt_that_the_library_looks_for() -> None:
    assert Prompts(texts={"corpus": "c: ", "passage": "p: "}).of_side("document") == "p: "
    assert Prompts(texts={"corpus": "c: "}).of_side("document") == "c: "
    assert Prompts(texts={}).of_side("query") == ""


@pytest.mark.parametrize(
    ("choice", "param", "says"),
    [
        ({"prompt_name": "sts"}, "data.prompt_name", "no prompt 'sts'; there is: STS, document, query"),
        ({"prompt_name": "query", "input_type": "query"}, "data.input_type", "prompt_name and input_type"),
        ({"input_type": "query", "prompt": ""}, "data.prompt", "input_type and prompt"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_met_is_refused(choice: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PROMPTS.choose(**choice, path="data.")
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_title_takes_the_place_of_none() -> None:
    prompt = PROMPTS.of_side("document")
    assert with_title(prompt, None, path="title") == prompt
    assert with_title(prompt, "none | text: x", path="title") == "title: none | text: x | text: "
    assert with_title(prompt, "The none", path="title") == "title: The none | text: "
    with pytest.raises(InvalidRequest, match="no place for a title") as caught:
        with_title("q: ", "Mars", path="data.titles[1]")
    assert caught.value.param == "data.titles[1]"
