"""Each plugin's page shows its tolerances, with their reasons."""

from __future__ import annotations

import pytest

from encoder_plugins import catalog
from encoder_plugins.parity import tolerance_table
from encoder_plugins.plugin import resolve


def test_the_committed_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert tolerance_table.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(catalog.plugins()))
def test_every_bound_has_a_label_and_a_reason(name: str) -> None:
    tolerances = resolve(catalog.get(name).parity).tolerances
    assert set(tolerances) == {"float32", "float16", "bfloat16"}
    for thresholds in tolerances.values():
        assert all(threshold.label and threshold.reason for threshold in thresholds)
    # a dtype with fewer bits is never held to less than one with more
    for metric in {threshold.metric for threshold in tolerances["float16"]}:
        half, brain = (next(b for b in tolerances[dtype] if b.metric == metric) for dtype in ("float16", "bfloat16"))
        assert half.badness(half.limit) <= brain.badness(brain.limit)


def test_a_page_without_markers_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="lacks"):
        tolerance_table.rendered("# A page", {})
