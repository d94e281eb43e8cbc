"""Long texts in parts: where they are cut, and that nothing is lost or found twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_plugins.families.gliner import chunks, words
from encoder_plugins.families.gliner.chunks import Chunk


def test_a_text_that_fits_is_one_part() -> None:
    assert chunks.plan([1] * 40, most_words=40, most_tokens=40, overlap=12, most_parts=9) == [Chunk(0, 40)]
    assert chunks.plan([3], most_words=1, most_tokens=3, overlap=12, most_parts=9) == [Chunk(0, 1)]


def test_parts_end_with_sentences_and_begin_with_them() -> None:
    # sentences of ten words; parts of 34 hold three, and overlap by at least four words
    borders = list(range(10, 100, 10))
    planned = chunks.plan([1] * 100, most_words=34, most_tokens=1000, overlap=4, most_parts=9, borders=borders)
    assert planned == [(0, 30), (26, 60), (56, 90), (86, 100)]
    # an overlap that reaches back to the beginning of a sentence takes it along
    planned = chunks.plan([1] * 100, most_words=34, most_tokens=1000, overlap=5, most_parts=9, borders=borders)
    assert planned == [(0, 30), (20, 50), (40, 70), (60, 90), (80, 100)]
    # the end of a sentence in a part's first half would leave too little of it
    planned = chunks.plan([1] * 60, most_words=34, most_tokens=1000, overlap=4, most_parts=9, borders=[10, 17])
    assert planned == [(0, 34), (30, 60)]
    planned = chunks.plan([1] * 60, most_words=34, most_tokens=1000, overlap=4, most_parts=9, borders=[18])
    assert planned == [(0, 18), (14, 48), (44, 60)]


def test_without_sentences_parts_are_as_long_as_the_model_takes() -> None:
    planned = chunks.plan([2] * 100, most_words=1000, most_tokens=60, overlap=5, most_parts=9)
    assert planned == [(0, 30), (25, 55), (50, 80), (75, 100)]


def test_words_that_fill_a_part_alone_are_refused() -> None:
    with pytest.raises(chunks.WordsTooLong) as refused:
        chunks.plan([1] * 20 + [90, 30] + [1] * 20, most_words=50, most_tokens=100, overlap=3, most_parts=9)
    assert refused.value.chunk == (18, 22)
    assert refused.value.tokens == 122


def test_no_more_parts_are_planned_than_a_request_may_have() -> None:
    with pytest.raises(chunks.TooManyParts) as refused:
        chunks.plan([1] * 100_000, most_words=13, most_tokens=999, overlap=12, most_parts=50)
    assert refused.value.words == 13 + 49
    assert len(chunks.plan([1] * 62, most_words=13, most_tokens=999, overlap=12, most_parts=51)) == 50


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 50), st.integers(0, 200), st.integers(0, 2**31))
def test_every_span_counts_in_exactly_one_part(count: int, overlap: int, words: int, tokens: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    most_words, most_tokens = overlap + words, 4 * (overlap + 1) + tokens
    lengths = generator.integers(0, 5, count).tolist()
    borders = sorted(set(generator.integers(1, count + 1, generator.integers(0, 40)).tolist()))
    planned = chunks.plan(
        lengths, most_words=most_words, most_tokens=most_tokens, overlap=overlap, most_parts=999, borders=borders
    )
    assert planned[0].begin == 0
    assert planned[-1].end == count
    for part in planned:
        assert 0 < part.end - part.begin <= most_words
        assert sum(lengths[part.begin : part.end]) <= most_tokens
    for before, behind in pairwise(planned):
        assert before.begin < behind.begin <= before.end - overlap
        assert before.end < behind.end
    # every span as wide as an entity can be
    start = np.repeat(np.arange(count), overlap)
    last = start + np.tile(np.arange(overlap), count)
    start, last = start[last < count], last[last < count]
    counted = np.zeros(len(start), int)
    for number, part in enumerate(planned):
        mine = chunks.owned(planned, number, start, last)
        inside = (start >= part.begin) & (last < part.end)
        counted += mine & inside
    assert (counted == 1).all()


def test_a_span_counts_where_it_has_most_around_it() -> None:
    planned = [Chunk(0, 20), Chunk(10, 30)]
    start = np.array([10, 12, 14, 15, 17, 19, 13])
    last = np.array([10, 12, 14, 15, 17, 19, 16])
    # before the middle of words 10 to 19 it is the first part; a tie is the first's, too
    assert chunks.owned(planned, 0, start, last).tolist() == [True, True, True, False, False, False, True]
    assert chunks.owned(planned, 1, start, last).tolist() == [False, False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four! Five", [3, 6]),
        ('He said "no." Then "yes?!" he went...', [6, 12]),
        ("First line\nsecond line\r\n\r\nthird", [2, 4]),
        ("東京。大阪！ 終", [2, 4]),
        ("no sentence ends here", []),
        ("3.14 is pi", [2]),
        ("", []),
        ("end.", []),
    ],
)
def test_sentences_end_where_readers_see_an_end(text: str, expected: list[int]) -> None:
    found = words.split(text)
    assert chunks.sentence_ends(found, chunks.line_starts(text, words.starts(text, found))) == expected
