"""What crosses the process border comes out as it went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoder_plugins.backbones import token_marks
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
    for items in ([item], [item, ITEM, item]):
        tokens = list(range(40, 40 + len(items)))
        extra = payload.encode_texts(items, tokens)
        found = payload.decode(extra)
        assert found is not None
        assert all(same(*pair) for pair in zip(found, items, strict=True))
        marks = token_marks.decode(extra, sum(tokens))
        assert marks is None if len(items) == 1 else marks is not None and marks.tokens.tolist() == tokens


@pytest.mark.parametrize("name", ["words", "tasks", "classes", "thresholds", "sizes"])
def test_texts_whose_sizes_are_not_those_of_the_values_are_refused(name: str) -> None:
    extra = payload.encode_texts([ITEM, ITEM], [40, 40])
    for wrong in (extra[name][:-4], extra[name] + b"\1\0\0\0", b""):
        with pytest.raises(ValueError, match=r"announced|reshape"):
            payload.decode(extra | {name: wrong})


def test_the_tables_of_a_prompt_are_separated() -> None:
    plain = Item(ITEM.words, (), ITEM.classes)
    tables = [torch.rand(4, payload.COLUMNS + 2), torch.zeros(0, payload.COLUMNS), torch.rand(2, payload.COLUMNS)]
    joined = payload.join(tables)
    found = payload.split(joined, [ITEM, plain, plain])
    assert all(torch.equal(*pair) for pair in zip(found, tables, strict=True))
    assert payload.split(payload.join(tables[:1]), [ITEM])[0] is tables[0]
    # what is not whole is never cut
    for answer in (joined[:-1], torch.zeros(0, payload.COLUMNS), joined[:2]):
        with pytest.raises(RuntimeError, match="not the tables of 3 texts"):
            payload.split(answer, [ITEM, plain, plain])


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
