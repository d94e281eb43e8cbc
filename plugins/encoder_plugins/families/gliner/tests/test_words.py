"""Words and offsets, against the library's splitter."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from encoder_plugins.families.gliner import words
from encoder_plugins.families.gliner.tests.library import call

SCRIPTS = (
    "aZ09 _-–'’.,\t\r\n\u00a0\u200b\u200d\ufeff\u0301\u0130ıßﬁ京都東京한국어العربيةहिन्दीไทย🏳️‍🌈👩‍🚀\U0001d538\x00\x1c"
)
TEXTS = (
    "Tim Cook leads Apple in Cupertino.",
    "a--b a-b-c -a a- _a_-_b_ x_-y 2-3 a-–b",
    "line one\r\nline two\r\n\r\nthree\u2028four\x85five",
    "re\u0301sume\u0301 cafe\u0301 e\u0301-e\u0301",
    "İstanbul'da İ ı I i\u0307",
    "👩‍🚀 went to 🏳️‍🌈 on 🇩🇪",
    "東京は日本の首都。नई दिल्ली भारत की राजधानी है।",
    "\u200b\u200b \ufeff\x00\x01 \u3000end",
    "",
    " \t\n\x1c\u3000",
)


def by_library(text: str) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = call("split", text)
    return found


def by_us(text: str) -> list[tuple[str, int, int]]:
    found = words.split(text)
    return [(word, start, start + len(word)) for word, start in zip(found, words.starts(text, found), strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_words_and_offsets_are_the_library_s(text: str) -> None:
    assert by_us(text) == by_library(text)
    assert all(text[start:end] == word for word, start, end in by_us(text))


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet=SCRIPTS), st.text(alphabet="ab-_ .")))
@example("a-" * 50)
def test_words_and_offsets_are_the_library_s_for_any_text(text: str) -> None:
    assert by_us(text) == by_library(text)


def test_runs_of_words_are_where_their_first_and_last_word_are() -> None:
    text = "to be,  or\tnot to be: to"
    split = words.Split(words.split(text))
    first, last = [0, 3, 8, 0], [1, 3, 8, 8]
    found = [text[start:end] for start, end in split.runs(text, first, last)]
    assert found == ["to be", "or", "to", text]
    known = words.Split(split.words, known_places=split.places(text))
    assert known.runs(text, first, last) == split.runs(text, first, last)
    assert words.Split([]).places("") == []


def test_the_library_knows_our_splitter_by_its_name() -> None:
    assert call("splits_by_whitespace", words.SPLITTER)
