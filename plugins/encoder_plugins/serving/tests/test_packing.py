"""Which texts share a prompt."""

from __future__ import annotations

import pytest

from encoder_plugins.serving import steps
from encoder_plugins.serving.packing import MOST_TOKENS, grouped, pack


@pytest.mark.parametrize(
    ("tokens", "kinds", "expected"),
    [
        ([], (), []),
        ([10], (), [1]),
        ([4, 4, 2], (), [3]),
        ([4, 4, 3], (), [2, 1]),
        # a text that is too long for company has a prompt of its own
        ([30, 2, 30, 1, 1], (), [1, 1, 1, 2]),
        ([4, 7, 3, 7, 3], (), [1, 2, 2]),
        ([1, 1, 1, 1], (0, 0, 5, 0), [2, 1, 1]),
        ([1, 1, 1], (None, None, None), [3]),
    ],
)
def test_a_prompt_has_as_many_texts_as_fit_in_order(
    tokens: list[int], kinds: tuple[object, ...], expected: list[int]
) -> None:
    found = pack(tokens, 10, kinds)
    assert found == expected
    assert [text for texts in grouped(tokens, found) for text in texts] == tokens


def test_a_shared_prompt_is_no_more_than_a_step_has_for_long_requests() -> None:
    assert max(pack([16] * 5_000, MOST_TOKENS)) * 16 <= min(steps.LONG_TOKENS.values())


def test_each_text_needs_a_kind() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pack([1, 2], 10, [0])
