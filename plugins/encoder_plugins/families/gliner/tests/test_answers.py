"""The rows of a prompt's table to the candidates of each of its texts."""

from __future__ import annotations

import numpy as np
import torch

from encoder_plugins.families.gliner import answers
from encoder_plugins.families.gliner.answers import PreparedText, Table
from encoder_plugins.families.gliner.chunks import Chunk
from encoder_plugins.families.gliner.payload import COLUMNS, LOGIT, TOO_MANY
from encoder_plugins.families.gliner.words import Split

LOGITS = slice(LOGIT, COLUMNS)


def in_parts(*chunks: Chunk) -> PreparedText:
    return PreparedText("", [], ("a", "b"), None, chunks, None, 0, Split([]))


def table(*rows: list[float]) -> Table:
    values = np.array(rows, np.float32).reshape(-1, COLUMNS)
    return Table(values, torch.from_numpy(values[:, LOGITS]).sigmoid().numpy())


def test_the_rows_of_a_prompt_are_those_of_the_part_in_whose_words_they_begin() -> None:
    # parts of 3, 2, 1 and 4 words, the third without a row; rows in any order, and those of a part stay in theirs
    pooled = torch.tensor([[6, 1, 0, 0], [0, 0, 1, 2], [4, 0, 0, -1], [2, 0, 0, 3], [9, 0, 1, 1], [3, 1, 1, 4.0]])
    before = pooled.clone()
    found = list(answers.tables_of(pooled, [3, 2, 1, 4], LOGITS))
    assert [one.rows.tolist() for one in found] == [
        [[0, 0, 1, 2], [2, 0, 0, 3]],
        [[1, 0, 0, -1], [0, 1, 1, 4]],
        [],
        [[0, 1, 0, 0], [3, 0, 1, 1]],
    ]
    for one in found:
        torch.testing.assert_close(torch.tensor(one.scores), torch.tensor(one.rows[:, LOGITS]).sigmoid())
    assert torch.equal(pooled, before)


def test_a_prompt_without_rows_has_a_table_for_each_part() -> None:
    found = list(answers.tables_of(torch.zeros(0, COLUMNS), [3, 2], LOGITS))
    assert [(one.rows.shape, one.scores.shape) for one in found] == [((0, 0), (0, 0))] * 2
    assert list(map(answers.candidate_count, found)) == [0, 0]
    none = answers.candidates(in_parts(Chunk(0, 5)), found)
    assert (none.spans.shape, none.score.shape, none.best.shape) == ((0, LOGIT), (0,), (0, 0))


def test_a_part_without_rows_may_come_before_one_with_some() -> None:
    found = answers.candidates(in_parts(Chunk(0, 10), Chunk(10, 16)), [table(), table([1, 2, 0, 3.0])])
    assert found.spans.tolist() == [[11, 2, 0]]


def test_candidates_that_a_pooler_did_not_keep_are_counted() -> None:
    assert answers.candidate_count(table([0, 0, 1, 0.5], [0, 0, TOO_MANY, 7.0], [1, 0, 0, 0.5])) == 9


def test_a_span_in_two_parts_counts_in_the_one_with_more_words_around_all_of_it() -> None:
    # words 7 to 9: none behind it in the first part, one before it in the second one
    text = in_parts(Chunk(0, 10), Chunk(6, 16))
    first, second = table([7, 2, 0, 1.0], [0, 1, 1, 2.0]), table([1, 2, 0, 3.0])
    found = answers.candidates(text, [first, second])
    assert found.spans.tolist() == [[0, 1, 1], [7, 2, 0]]
    np.testing.assert_allclose(found.score, 1 / (1 + np.exp([-2.0, -3.0])), rtol=1e-6)
    assert found.best.shape == (2, 0)
