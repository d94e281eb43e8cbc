"""What a step may have while short requests come beside long ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from encoder_plugins.serving import steps


@pytest.mark.parametrize(
    ("tokens", "complete", "long", "short"),
    [
        (100, True, False, True),
        (101, True, True, False),
        (101, False, True, False),
        # it may become a long one
        (100, False, False, False),
    ],
)
def test_a_prompt_says_how_long_its_request_is(tokens: int, complete: bool, long: bool, short: bool) -> None:
    extra = steps.parameters(tokens, complete=complete, most=100)
    assert (steps.is_long(extra), steps.is_short(extra)) == (long, short)
    # beside what the pooler reads
    assert (steps.is_long({"words": b"", **extra}), steps.is_short({"words": b"", **extra})) == (long, short)


def test_a_prompt_that_says_nothing_is_a_short_one() -> None:
    assert (steps.is_long(None), steps.is_short(None)) == (False, True)


@pytest.mark.parametrize(
    ("left", "enough", "expected"),
    [
        ([50] * 10, 100, 100),
        ([], 100, 100),
        # a prompt is computed whole
        ([50, 150, 7], 100, 150),
        # never more than the engine holds
        ([2_000], 100, 1_000),
        ([50] * 10, 1_000, 1_000),
    ],
)
def test_a_step_has_no_more_tokens_than_are_enough_or_one_prompt_has(
    left: Sequence[int], enough: int, expected: int
) -> None:
    assert steps.most_tokens(iter(left), 1_000, enough) == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([(50, True)] * 10, 100),
        ([(50, True)] * 10 + [(7, False)] * 3, 121),
        # a prompt is computed whole
        ([(50, True), (150, True), (120, True), (7, False)], 157),
        # never more than without a bound
        ([(50, True), *[(7, False)] * 200], 1_000),
        ([(2_000, True)], 1_000),
    ],
)
def test_a_step_has_all_short_requests_and_a_part_of_the_long_ones(
    left: Sequence[tuple[int, bool]], expected: int
) -> None:
    assert steps.step_tokens(left, 1_000, 100, after_long=False) == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([(50, True), (7, False), (8, False)], 15),
        ([(50, True), *[(7, False)] * 200], 1_000),
        # none waits
        ([(50, True)] * 10, 100),
    ],
)
def test_after_a_step_with_long_requests_the_short_ones_that_wait_are_alone(
    left: Sequence[tuple[int, bool]], expected: int
) -> None:
    assert steps.step_tokens(left, 1_000, 100, after_long=True) == expected


@pytest.mark.parametrize(("now", "bounded"), [(5.0, True), (5.9, True), (6.0, False), (6.1, False)])
def test_a_short_request_bounds_the_steps_of_a_second(now: float, bounded: bool) -> None:
    assert steps.is_bounded(now, 5.0) is bounded
