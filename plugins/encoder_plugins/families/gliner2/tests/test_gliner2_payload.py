"""What crosses the process border comes out as it went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoder_plugins.families.gliner2 import payload
from encoder_plugins.families.gliner2.payload import Item, SpanItem


def positions(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


ITEM = Item(
    positions(30, 31, 33),
    (
        SpanItem(1, positions(4, 6), np.array([0.5, 0.25], np.float32)),
        SpanItem(11, positions(14, 16, 18), np.array([0.7, 0.5, 0.5], np.float32), single=True, attributes=2),
    ),
    (positions(22, 24), positions(26, 28, 29)),
)


def same(one: Item, other: Item) -> bool:
    return repr(one) == repr(other)


@pytest.mark.parametrize("item", [ITEM, Item(ITEM.words, (), ITEM.classes), Item(ITEM.words, ITEM.spans, ())])
def test_a_text_comes_out_as_it_went_in(item: Item) -> None:
    found = payload.decode(payload.encode(item))
    assert found is not None
    assert same(found, item)


def test_a_profile_run_has_no_text() -> None:
    assert payload.decode(None) is None
    assert payload.decode({}) is None


@pytest.mark.parametrize("name", ["tasks", "classes", "thresholds"])
def test_parameters_that_end_too_early_or_too_late_are_refused(name: str) -> None:
    extra = payload.encode(ITEM)
    with pytest.raises(ValueError, match=r"announced|left"):
        payload.decode(extra | {name: extra[name][:-4]})
    with pytest.raises(ValueError, match=r"announced|left|enough"):
        payload.decode(extra | {name: extra[name] + b"\1\0\0\0"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("candidates", [0, 3])
def test_an_answer_comes_out_as_it_went_in(dtype: torch.dtype, candidates: int) -> None:
    counts = torch.zeros(2, payload.COUNTS, dtype=dtype)
    counts[0, 3] = counts[1, 19] = 2
    classes = [torch.tensor([1.0, -2.0], dtype=dtype), torch.tensor([0.5, 0.25, 4.0], dtype=dtype)]
    table = torch.tensor([[0, 1, 1, 2, 0, 0.75, 0, 0], [1, 0, 0, 383, 7, -1.5, 3, -4], [1, 0, 0, 0, 0, 2, 1, 1]])
    encoded = payload.encode_output(counts, classes, table[:candidates], ITEM.attributes)
    assert encoded.is_contiguous()
    found = payload.decode_output(encoded, ITEM)
    assert found.counts.tolist() == [3, 19]
    assert found.places.tolist() == table[:candidates, :5].long().tolist()
    assert found.logits.tolist() == table[:candidates, 5].tolist()
    assert found.attributes.tolist() == table[:candidates, 6:].tolist()
    assert [logits.tolist() for logits in found.classes] == [logits.tolist() for logits in classes]
