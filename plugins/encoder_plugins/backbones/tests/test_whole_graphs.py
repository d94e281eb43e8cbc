from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest

with warnings.catch_warnings():
    # vLLM imports what warns about itself
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones import whole_graphs


def lengths(offsets: list[int]) -> list[int]:
    return [end - start for start, end in pairwise(offsets)]


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [([16], 16), ([3], 16), ([3, 9], 16), ([2] * 8, 16), ([512] * 7, 4096), ([100, 300], 1024), ([7] * 60, 1024)],
)
def test_a_graph_holds_the_batch_first_and_then_its_padding(texts: list[int], tokens: int) -> None:
    offsets = np.cumsum([0, *texts]).astype(np.int32)
    found = whole_graphs.padded_offsets(offsets, tokens)
    assert found is not None
    assert found.dtype == np.int32
    assert found[: len(offsets)].tolist() == offsets.tolist()
    assert len(found) == whole_graphs.sequences_of(tokens) + 1
    # every row belongs to a sequence that is computed whole
    assert found[-1] == tokens
    assert all(0 <= length <= whole_graphs.LONGEST for length in lengths(found.tolist()))


@pytest.mark.parametrize(
    ("texts", "tokens", "why"),
    [
        ([1] * 9, 16, "more texts than the graph has sequences"),
        ([1] * 8, 16, "no sequence is left for the padding of few tokens"),
        ([513], 1024, "a text that is longer than a graph computes"),
        ([1] * 64, 1024, "no sequence is left for the padding"),
        ([1], 8192, "more padding than the other sequences hold"),
    ],
)
def test_what_a_graph_does_not_hold(texts: list[int], tokens: int, why: str) -> None:
    sequences = np.cumsum([0, *texts]).astype(np.int32)
    if tokens == 8192:
        sequences = np.append(sequences, [sequences[-1]] * 255).astype(np.int32)
    assert whole_graphs.padded_offsets(sequences, tokens) is None, why
