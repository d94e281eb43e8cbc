"""From bytes to a request, and what is said about bytes that are none."""

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving.http import body as request


class Words(request.Data):
    words: list[str]
    count: int | None = None


def test_a_good_body_is_parsed() -> None:
    envelope = request.parse_body(b'{"model": "m", "data": {"words": ["a", "\\u00e9"]}}', Words)
    assert envelope.model == "m"
    assert envelope.data == Words(words=["a", "é"])


@pytest.mark.parametrize("body", [b'{"data": {"words": []}}', b'{"model": null, "data": {"words": []}}'])
def test_the_model_may_be_left_out(body: bytes) -> None:
    assert request.parse_body(body, Words).model is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b'{"model": "m", "data": {"words": ["\xff"]}}', "body"),
        (b'{"model": "m", "data": {"words": ["\\ud800"]}}', "body"),
        (b'{"model": "m", "data": {"words": []}} x', "body"),
        (b'{"model": "m", "data": ' + b"[" * 10_000, "body"),
        (b'{"model": 3, "data": {"words": []}}', "model"),
        (b'{"model": "m"}', "data"),
        (b'{"model": "m", "data": null}', "data"),
        (b'{"model": "m", "data": {"words": []}, "input": "x"}', "input"),
        (b'{"model": "m", "data": {}}', "data.words"),
        (b'{"model": "m", "data": {"words": "a"}}', "data.words"),
        (b'{"model": "m", "data": {"words": ["a", 3]}}', "data.words[1]"),
        (b'{"model": "m", "data": {"words": [["a"]]}}', "data.words[0]"),
        (b'{"model": "m", "data": {"words": [NaN]}}', "data.words[0]"),
        (b'{"model": "m", "data": {"words": [], "count": true}}', "data.count"),
        (b'{"model": "m", "data": {"words": [], "count": 1.0}}', "data.count"),
        (b'{"model": "m", "data": {"words": [], "other": 1}}', "data.other"),
    ],
)
def test_a_bad_body_is_refused_by_the_name_of_its_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request.parse_body(body, Words)
    assert caught.value.param == param
    assert str(caught.value).startswith(f"{param}: ")


def test_parsed_data_is_refused_the_same_way() -> None:
    with pytest.raises(InvalidRequest) as caught:
        request.parse_data({"words": [None]}, Words)
    assert caught.value.param == "data.words[0]"


def test_a_refusal_never_repeats_what_was_sent() -> None:
    with pytest.raises(InvalidRequest) as caught:
        request.parse_body(b'{"model": "m", "data": {"words": ' + b'"secret"' + b"}}", Words)
    assert "secret" not in str(caught.value)
