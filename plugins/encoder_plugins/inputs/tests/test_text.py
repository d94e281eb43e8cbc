"""Which texts a request may hold."""

from typing import Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs.text import TextLimits, check_texts, texts_of
from encoder_plugins.plugin import REQUEST_LIMITS

COMMON = {limit.name: limit.default for limit in REQUEST_LIMITS}
LIMITS = TextLimits(**COMMON, texts=3, characters_per_text=10, characters=20)


@pytest.mark.parametrize("anything", [True, False])
@pytest.mark.parametrize(
    ("text", "texts", "param", "says"),
    [
        (None, None, "data.text", "neither text nor texts"),
        ("a", ["a"], "data.texts", "both there"),
        (None, [], "data.texts", "at least one"),
        (None, ["a"] * 4, "data.texts", "4 texts; the limit is 3"),
        ("b" * 11, None, "data.text", "11 characters; the limit is 10"),
        (None, ["a", "b" * 11], "data.texts[1]", "11 characters; the limit is 10"),
        (None, ["b" * 10] * 3, "data.texts", "30 characters in all; the limit is 20"),
    ],
)
def test_texts_beyond_a_limit_are_refused(text: Any, texts: Any, param: str, says: str, anything: bool) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        texts_of(text, texts, LIMITS, anything=anything)
    assert caught.value.param == param


def test_texts_within_the_limits_are_taken_as_they_are() -> None:
    assert texts_of("\t\r\n", None, LIMITS) == ["\t\r\n"]
    assert texts_of(None, ("b" * 10, "c" * 9, "d"), LIMITS) == ("b" * 10, "c" * 9, "d")


@pytest.mark.parametrize("text", ["", "\0", "a\x0b", "\x1b[0m", "\x1f"])
def test_an_empty_or_binary_text_is_one_only_where_anything_is(text: str) -> None:
    assert texts_of(None, ["a", text], LIMITS, anything=True) == ["a", text]
    with pytest.raises(InvalidRequest, match=r"empty|U\+00") as caught:
        texts_of(None, ["a", text], LIMITS)
    assert caught.value.param == "data.texts[1]"


def test_another_field_is_named_as_it_is() -> None:
    for single, path in ((True, "input"), (False, "input[0]")):
        with pytest.raises(InvalidRequest) as caught:
            check_texts([""], LIMITS, path="input", single=single)
        assert caught.value.param == path
