"""The index arithmetic of a batch, against the same thing done one text at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.row_groups import GroupRule, RowPlan, TextRows, plan

# three groups: one whose rows may lack tokens, one that is read beside its token, one that a text may lack
RULES = {
    "words": GroupRule(may_lack_tokens=True),
    "labels": GroupRule(shift=1),
    "choices": GroupRule(may_be_empty=True),
}


def text(start: int, tokens: int, words: Sequence[int], labels: Sequence[int], choices: Sequence[int] = ()) -> TextRows:
    groups = {"words": words, "labels": labels, "choices": choices}
    return TextRows(start, tokens, {name: np.asarray(rows, np.int32) for name, rows in groups.items()})


# the second and third text are of one request
TEXTS = [
    text(0, 10, [4, 5, 9], [0, 2], [7]),
    text(10, 4, [3], [1]),
    text(14, 12, [6, -1, 8, -1, 11], [0, 1, 2], [0, 1]),
    None,
    text(26, 6, [], [1]),
    text(32, 6, [4, 5], []),
    text(38, 6, [4, 6], [1]),
    text(44, 6, [4, 5], [5]),
    text(50, 4, [2, 3], [0]),
]
ANSWERED = [0, 1, 2, 8]


def rows_of(found: RowPlan, group: str, number: int) -> list[int]:
    """Return the token rows of a text's group, -1 for none."""
    part = found.groups[group]
    rows = found.rows[part.first : part.first + part.total].copy()
    rows[part.missing] = -1
    return [int(row) for row in rows[part.of(number)]]


def test_every_text_finds_its_rows_in_every_group() -> None:
    found = plan(TEXTS, RULES)
    assert found.texts.tolist() == ANSWERED
    for number, source in enumerate(TEXTS[answered] for answered in ANSWERED):
        assert source is not None
        for name, rule in RULES.items():
            expected = [row + rule.shift + source.start if row >= 0 else -1 for row in source.groups[name].tolist()]
            assert rows_of(found, name, number) == expected
    assert [found.groups[name].most for name in RULES] == [5, 3, 2]
    assert [found.groups[name].counts.tolist() for name in RULES] == [[3, 1, 5, 2], [2, 1, 3, 1], [1, 0, 2, 0]]
    assert found.rows.dtype == found.texts.dtype == found.groups["words"].offsets.dtype == np.int32


def test_a_batch_without_answers_is_empty() -> None:
    found = plan([None, text(3, 2, [], [])], RULES)
    assert found.texts.tolist() == found.rows.tolist() == []
    assert all((group.total, group.most) == (0, 0) for group in found.groups.values())


@pytest.mark.parametrize(
    ("words", "labels", "choices", "fine"),
    [
        ([0, 4], [1], [], True),
        ([-1], [1], [4], True),
        ([5], [1], [], False),
        ([-2], [1], [], False),
        ([1], [4], [], False),
        ([1], [3], [], True),
        ([1], [-1], [], False),
        ([], [1], [], False),
        ([1], [], [], False),
        ([1], [1], [5], False),
        ([1], [1], [-1], False),
    ],
)
def test_a_text_with_rows_outside_its_tokens_is_left_out(
    words: list[int], labels: list[int], choices: list[int], fine: bool
) -> None:
    # whatever stands beside it
    neighbours = [text(0, 9, [8], [7]), text(100, 5, words, labels, choices), text(105, 9, [8, -1], [0, 7], [0])]
    assert plan(neighbours, RULES).texts.tolist() == ([0, 1, 2] if fine else [0, 2])
    assert not len(plan([TextRows(0, 5, {"words": np.zeros(1, np.int32)})], RULES).texts)


def test_the_device_gathers_every_group_at_once() -> None:
    found = plan(TEXTS, RULES)
    hidden = torch.arange(54.0)[:, None] + torch.tensor([0.25, 0.5])
    order, thresholds = np.asarray([2, 0, 1, 3], np.int32), np.asarray([0.5, np.inf, -np.inf, 0.1], np.float32)
    rows = DeviceRows(found, torch.device("cpu"), order=order, thresholds=thresholds)
    vectors = rows.split(rows.gather(hidden))
    for name in RULES:
        group = found.groups[name]
        assert rows.offsets[name].tolist() == group.offsets.tolist()
        for number in range(len(ANSWERED)):
            expected = [hidden[row].tolist() if row >= 0 else [0.0, 0.0] for row in rows_of(found, name, number)]
            assert vectors[name][group.of(number)].tolist() == expected
    assert rows.extra["order"].tolist() == order.tolist()
    assert rows.extra["thresholds"].tolist() == thresholds.tolist()
