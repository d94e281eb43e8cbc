"""Long documents: with a window no token beyond it has a part in a row, whatever the length."""

from __future__ import annotations

import pytest
import torch

from encoder_kernels.relative_bias_attention import relative_bias_attention

WINDOW = 64


def attended(rows: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return attention over two sequences, of which the second has 40 tokens."""
    bounds = torch.tensor([0, len(rows) - 40, len(rows)], dtype=torch.int32)
    return relative_bias_attention(rows, rows, rows, None, bounds, len(rows) - 40, scale=0.2, window=window)


@pytest.mark.parametrize("tokens", [300, 2_000])
def test_no_token_beyond_the_window_has_a_part_in_a_row(tokens: int) -> None:
    torch.manual_seed(1)
    rows = torch.randn(tokens + 40, 2, 32)
    changed, middle = rows.clone(), tokens // 2
    changed[middle] += 5
    moved = {
        window: (attended(rows, window) != attended(changed, window)).flatten(1).any(1).nonzero().flatten().tolist()
        for window in (WINDOW, None)
    }
    # every token within the window, and no other; without a window every token of the sequence
    assert moved[WINDOW] == list(range(middle - WINDOW, middle + WINDOW + 1))
    assert moved[None] == list(range(tokens))
