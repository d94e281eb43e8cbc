"""How a call becomes requests, and how refusals are located in the call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_client.embeddings import text_items
from encoder_client.errors import ArgumentError, InvalidRequestError
from encoder_client.work import Batch, envelope_of, json_of, param_in_call, split, texts_of

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=40)


def batches(texts: list[str], most: int = 3, **limits: int) -> list[Batch]:
    envelope = envelope_of({"model": "one", "lora": None}, {"normalize": True, "dimensions": None})
    return list(split(text_items(texts), limits, most=most, envelope=envelope, divisible=["data.texts"]))


@settings(deadline=None)
@given(st.lists(TEXT, max_size=30), st.integers(1, 5), st.integers(1, 60), st.integers(600, 900))
def test_requests_keep_the_limits_and_the_order(texts: list[str], most: int, characters: int, size: int) -> None:
    found = batches(texts, most, characters=characters, body_bytes=size)
    bodies: list[dict[str, Any]] = [json.loads(batch.body()) for batch in found]
    assert [text for body in bodies for text in body["data"]["texts"]] == texts
    assert [item.place for batch in found for item in batch.items] == list(range(len(texts)))
    for batch, body in zip(found, bodies, strict=True):
        assert body == {"model": "one", "data": {"normalize": True, "texts": body["data"]["texts"]}}
        if len(batch.items) > 1:
            assert len(batch.items) <= most
            assert sum(map(len, body["data"]["texts"])) <= characters
            assert len(batch.body()) <= size


@settings(deadline=None)
@given(st.lists(TEXT, max_size=30))
def test_no_request_is_smaller_than_it_has_to_be(texts: list[str]) -> None:
    assert [len(batch.items) for batch in batches(texts, 4)] == [4] * (len(texts) // 4) + [len(texts) % 4] * (
        len(texts) % 4 > 0
    )


def test_without_common_fields_the_body_is_json_too() -> None:
    (batch,) = split(text_items(["a", 'b"']), {}, most=2, envelope=envelope_of({}, {}))
    assert json.loads(batch.body()) == {"data": {"texts": ["a", 'b"']}}


@pytest.mark.parametrize(
    ("param", "in_call"),
    [
        ("data.texts[1]", "data.texts[4]"),
        ("texts[0]", "texts[3]"),
        ("data.texts[7]", "data.texts[7]"),
        ("data.texts", "data.texts"),
        ("data.labels[1]", "data.labels[1]"),
        ("body", "body"),
        (None, None),
    ],
)
def test_a_refusal_names_the_position_in_the_call(param: str | None, in_call: str | None) -> None:
    second = batches(list("abcdef"))[1]
    assert param_in_call(param, second) == in_call


def test_a_batch_is_halved_where_fewer_items_may_be_answered() -> None:
    (batch,) = batches(list("abcde"), 5)
    left, right = batch.halves()
    assert [json.loads(half.body())["data"]["texts"] for half in (left, right)] == [["a", "b"], ["c", "d", "e"]]
    assert param_in_call("data.texts[0]", right) == "data.texts[2]"
    assert batch.is_too_large(InvalidRequestError("large", status=413, param="body"))
    assert batch.is_too_large(InvalidRequestError("many", status=400, param="data.texts"))
    assert not batch.is_too_large(InvalidRequestError("empty", status=400, param="data.texts[1]"))
    (alone,) = batches(["a"])
    assert not alone.is_too_large(InvalidRequestError("large", status=413, param="body"))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "JSON"),
        (object(), "JSON"),
        ("ab\ud800", "surrogate pair at position 2"),
        ({"threshold": float("inf")}, "JSON"),
        (nested(100_000), "JSON"),
    ],
)
def test_what_json_has_not_is_refused_by_name(value: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        json_of(value, param="threshold")
    assert caught.value.param == "threshold"


def test_columns_of_tables_are_texts_and_other_things_are_not() -> None:
    import numpy as np

    assert texts_of(np.array(["a", "b"]), param="inputs") == ["a", "b"]
    assert texts_of(("a", "b"), param="inputs") == ["a", "b"]
    with pytest.raises(ArgumentError) as caught:
        texts_of(["a", None], param="inputs")
    assert caught.value.param == "inputs[1]"
