import pytest

from encoder_platform import chart_reference
from encoder_platform.chart_reference import Value

VALUES = """# A heading, of no value.

# -- First. It goes
# on here.
first: {a: 1}
second:
  # -- Inside.
  inner: ""
  deeper:
    # -- With a | in it.
    list: [1]
    # -- A whole.
    whole:
      part: 1
"""


def test_values_are_found_with_the_comments_above_them() -> None:
    assert list(chart_reference.described(VALUES)) == [
        Value("first", {"a": 1}, "First. It goes on here."),
        Value("second.inner", "", "Inside."),
        Value("second.deeper.list", [1], "With a | in it."),
        Value("second.deeper.whole", {"part": 1}, "A whole."),
    ]


def test_a_value_without_a_comment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"second\.bare has no comment"):
        list(chart_reference.described("second:\n  # no dashes\n  bare: 1\n"))


def test_a_cell_ends_where_it_should() -> None:
    rows = chart_reference.readme(VALUES).splitlines()
    assert "| `second.deeper.list` | `[1]` | With a / in it. |" in rows
