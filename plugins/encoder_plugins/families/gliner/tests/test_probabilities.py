"""A logit has one probability, in whatever place of a table it stands."""

from __future__ import annotations

import pytest
import torch

from encoder_plugins.families.gliner.probabilities import probabilities


@pytest.mark.parametrize("shape", [(1,), (7, 3), (130,), (5, 0)])
def test_the_place_of_a_logit_does_not_matter(shape: tuple[int, ...]) -> None:
    values = torch.linspace(-9, 9, 997)
    whole = probabilities(values.repeat_interleave(128).view(997, 128))
    assert torch.equal(whole, whole[:, :1].expand(-1, 128))
    for value, expected in zip(values, whole[:, 0], strict=True):
        found = probabilities(value.expand(shape))
        assert found.shape == shape
        assert torch.equal(found, expected.expand(shape))
    torch.testing.assert_close(whole[:, 0], torch.sigmoid(values.double()).float(), rtol=3e-7, atol=0)
