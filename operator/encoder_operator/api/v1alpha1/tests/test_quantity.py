from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_operator.api.v1alpha1.quantity import parse_quantity


@pytest.mark.parametrize(("one", "same"), [("1Gi", "1024Mi"), ("1", "1000m"), (2, "2"), ("0.5", "500m"), ("1e3", "1k")])
def test_equal_quantities_are_equal(one: str | int, same: str) -> None:
    assert parse_quantity(one) == parse_quantity(same)


@given(st.text(max_size=12))
def test_any_text_can_be_compared_as_a_quantity(text: str) -> None:
    assert parse_quantity(text) == parse_quantity(text)
