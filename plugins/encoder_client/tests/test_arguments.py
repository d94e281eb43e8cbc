"""Arguments of GLiNER's methods that would be left out of a request, or have another type than the library takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from encoder_client import ArgumentError, GLiNER
from encoder_client.tests.scripted_server import ScriptedServer, entities


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("modernbert_gliner_rerank", entities) as server:
        yield server


WRONG: Any = [
    ("threshold", {"threshold": None}),
    ("flat_ner", {"flat_ner": None}),
    ("multi_label", {"multi_label": None}),
    ("overflow", {"overflow": None}),
    ("input_spans", {"input_spans": 5}),
    ("input_spans[0]", {"input_spans": [None]}),
    ("labels", {"labels": {"a": ["a list"]}}),
    ("labels", {"labels": {1: "a description"}}),
    ("labels[1]", {"texts": ["a", "b"], "labels": [["x"], {"y": 2}]}),
    ("candidates_per_text", {"labels": [], "candidates_per_text": 5}),
    ("candidates_per_text[0]", {"labels": [], "candidates_per_text": ["Q1"]}),
]


@pytest.mark.parametrize(("param", "arguments"), WRONG)
def test_what_would_be_left_out_or_has_another_type_is_refused_by_name(
    server: ScriptedServer, param: str, arguments: Any
) -> None:
    with GLiNER(server.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.inference(**{"texts": ["a"], "labels": ["x"], **arguments})
        assert caught.value.param == param
        assert server.posted == []


def test_lists_for_each_text_may_be_iterators(server: ScriptedServer) -> None:
    with GLiNER(server.url) as model:
        spans: Any = iter([iter([{"start": 0, "end": 1}])])
        assert len(model.inference(["a"], ["x"], input_spans=spans)[0]) == 1
    assert server.posted[0].data["input_spans"] == [[{"start": 0, "end": 1}]]
