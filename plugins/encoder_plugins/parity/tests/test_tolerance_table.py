"""Each plugin's page shows its tolerances, with their reasons."""

from __future__ import annotations

from itertools import pairwise

import pytest

from encoder_plugins import catalog
from encoder_plugins.parity import tolerance_table
from encoder_plugins.plugin import resolve


def test_the_committed_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert tolerance_table.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(catalog.plugins()))
def test_every_bound_has_a_label_and_a_reason(name: str) -> None:
    tolerances = resolve(catalog.get(name).parity).tolerances
    # a plugin without bounds for fp8 is not served in it: parity is Inconclusive
    assert set(tolerances) - {"fp8"} == {"float32", "float16", "bfloat16"}
    for thresholds in tolerances.values():
        assert all(threshold.label and threshold.reason for threshold in thresholds)
    # a mode with fewer bits is never held to less than one with more
    modes = [mode for mode in ("float16", "bfloat16", "fp8") if mode in tolerances]
    for metric in {threshold.metric for threshold in tolerances["float16"]}:
        bounds = [next(bound for bound in tolerances[mode] if bound.metric == metric) for mode in modes]
        assert all(more.badness(more.limit) <= less.badness(less.limit) for more, less in pairwise(bounds))


def test_a_page_without_markers_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="lacks"):
        tolerance_table.rendered("# A page", {})
