"""What a pooler returns can be sent to another process, whatever its strides are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from encoder_plugins.backbones.sendable import keep_sendable, sendable

pytestmark = pytest.mark.filterwarnings("ignore")

MATRIX = torch.arange(12.0).reshape(3, 4)
TENSORS = {
    "column": MATRIX[:, 1],
    "one number of a column": MATRIX[1:2, 1],
    "transposed": MATRIX.t(),
    "transposed, one row": MATRIX[:1].t(),
    "expanded": MATRIX[0].expand(5, 4),
    "without rows": MATRIX[:0].t(),
    "a number": MATRIX[1, 1],
    "with a gradient": MATRIX.clone().requires_grad_() * 2,
    "bfloat16": MATRIX.bfloat16()[:, 2],
}


def sent(tensor: Tensor) -> bytes:
    # what vLLM does, `vllm.v1.utils.tensor_data`; test_rows_pooler calls it
    return bytes(tensor.flatten().cpu().contiguous().view(torch.uint8).numpy().data)


@pytest.mark.parametrize("name", TENSORS)
def test_every_dense_tensor_can_be_sent(name: str) -> None:
    tensor = TENSORS[name]
    found = sendable(tensor)
    assert torch.equal(found, tensor)
    assert len(sent(found)) == tensor.numel() * tensor.element_size()


def test_what_can_be_sent_is_not_copied() -> None:
    assert sendable(MATRIX).data_ptr() == MATRIX.data_ptr()
    assert sendable(MATRIX[1:]).data_ptr() == MATRIX[1:].data_ptr()


def test_what_has_no_bytes_ends_the_engine() -> None:
    with pytest.raises(TypeError, match="sparse"):
        sendable(MATRIX.to_sparse())
    with pytest.raises(TypeError, match="meta"):
        sendable(MATRIX.to("meta"))


class Columns(nn.Module):
    def forward(self, matrix: Tensor) -> list[Tensor | None]:
        return [None, *torch.split(matrix.t(), 1, dim=1)]


def test_a_pooler_returns_tensors_that_can_be_sent() -> None:
    pooler = Columns()
    before = pooler(MATRIX)
    keep_sendable(pooler)
    after = pooler(MATRIX)
    assert after[0] is None
    for one, other in zip(before[1:], after[1:], strict=True):
        assert torch.equal(one, other)
        assert len(sent(other)) == 16
