"""The pooler of GLiNER2 alone, with random weights: what it compiles when it starts, how often the host waits, and tasks without a count."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.families.gliner.heads.tests.compared_heads import metadata
    from encoder_plugins.families.gliner.heads.tests.gpu_behavior import launches, waits
    from encoder_plugins.families.gliner.heads.transfers import to_device
    from encoder_plugins.families.gliner2 import payload
    from encoder_plugins.families.gliner2.config import Gliner2Config
    from encoder_plugins.families.gliner2.heads import pooler as pooler_module
    from encoder_plugins.families.gliner2.heads.pooler import Gliner2SpanPooler
    from encoder_plugins.families.gliner2.payload import Item, Output, SpanItem
    from encoder_plugins.serving.packing import grouped

pytestmark = pytest.mark.filterwarnings("ignore")

SIZE = 32
LAYERS = ("count_lstm", "count_lstm_v2", "count_lstm_moe")


def make(layer: str = "count_lstm_v2", capacity: int = 2048, count: int | None = None) -> Gliner2SpanPooler:
    """Make a pooler; ``count`` is what every task's count is."""
    torch.manual_seed(0)
    pooler = Gliner2SpanPooler(SIZE, Gliner2Config(counting_layer=layer, max_width=8), capacity=capacity)
    for parameter in pooler.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if count is not None:
        pooler.head.counts.outer.bias.data[count] = 1000.0
    return pooler


def task(fields: int, threshold: float, *, single: bool = False, attributes: int = 0, begin: int = 0) -> SpanItem:
    positions = np.arange(begin + 1, begin + 1 + fields + attributes, dtype=np.int32)
    return SpanItem(begin, positions, np.full(len(positions), threshold, np.float32), single, attributes)


def item(words: int, *spans: SpanItem, classes: int = 0) -> Item:
    labels = (np.arange(classes, dtype=np.int32),) if classes else ()
    return Item(np.arange(words, dtype=np.int32), spans, labels)


def send(pooler: Gliner2SpanPooler, items: Sequence[Item], device: str = "cpu") -> list[Output]:
    lengths = [
        max(len(one.words), *(int(span.fields.max()) + 1 for span in one.spans), *map(len, one.classes), 1)
        for one in items
    ]
    rows = torch.cat([torch.randn(length, SIZE, generator=torch.Generator().manual_seed(length)) for length in lengths])
    (sent,) = to_device(torch.device(device), rows.numpy())
    # the first three in one request, the others in one each
    packs = [min(3, len(items)), *[1] * (len(items) - 3)]
    requests, tokens = grouped(items, packs), grouped(lengths, packs)
    extras = [payload.encode_texts(*request) for request in zip(requests, tokens, strict=True)]
    answers: Any = pooler(sent.to(pooler.head.marker_in.weight.dtype), metadata(list(map(sum, tokens)), extras))
    tables = [table for answer, own in zip(answers, requests, strict=True) for table in payload.split(answer, own)]
    return [payload.decode_output(table, one) for table, one in zip(tables, items, strict=True)]


def stream() -> Iterator[list[Item]]:
    """Yield batches of several sizes, with few and many words, queries, steps and candidates."""
    generator = np.random.default_rng(0)
    for number, fields in enumerate((1, 3, 15, 16, 17, 32, 33, 70)):
        some = [
            item(
                int(generator.integers(1, 40)),
                task(fields, float(generator.choice([0.5, 1.0])), begin=int(generator.integers(3))),
                task(2, 0.7, single=True, attributes=int(generator.integers(1, 4))),
                classes=int(generator.integers(0, 5)),
            )
            for _ in range(number)
        ]
        # more candidates than are kept
        yield [*some, item(300, task(fields, 0.0, single=True))]
    yield [item(5, classes=3)]


@pytest.mark.parametrize(
    ("layer", "dtype"), [*((layer, torch.float32) for layer in LAYERS), ("count_lstm_v2", torch.bfloat16)]
)
def test_no_request_needs_a_form_of_a_kernel_that_the_start_did_not_compile(layer: str, dtype: torch.dtype) -> None:
    pooler = make(layer, count=1)
    for part in (pooler.head.marker_in, pooler.head.marker_out, pooler.head.span_in, pooler.head.span_out):
        part.to(dtype)
    pooler.head.queries.to(dtype)
    with launches() as compiled:
        pooler.warm_up(torch.randn(512, SIZE, dtype=dtype))
    # three widths of a block of queries, for candidates and for dense passes
    assert len(compiled) == 6
    with launches() as needed:
        for items in stream():
            send(pooler, items)
    assert needed == compiled, needed ^ compiled


ENTITIES = item(20, task(3, 0.99999, single=True), classes=2)
RECORDS = item(20, task(3, 0.99999))
CROWDED = item(60, task(3, 0.0, single=True))
ATTRIBUTED = item(20, task(3, 0.0, single=True, attributes=2))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([ENTITIES] * 9, 1),
        ([item(20, classes=4)] * 9, 1),
        # behind the wait for counts, the device computes the words' share
        ([RECORDS] * 9, 2),
        ([ENTITIES, RECORDS, item(3, classes=4)] * 3, 2),
        ([ENTITIES, *[CROWDED] * 8], 2),
        ([ATTRIBUTED] * 9, 2),
        ([RECORDS, CROWDED, ATTRIBUTED] * 3, 4),
    ],
    ids=["entities", "classes", "records", "mixed", "overflow", "attributes", "all"],
)
def test_a_batch_waits_as_often_as_one_text(items: list[Item], expected: int) -> None:
    pooler = make(capacity=800, count=2)
    with waits() as found:
        send(pooler, items)
    assert found.count == expected
    alone = []
    for one in {id(one): one for one in items}.values():
        with waits() as found:
            send(pooler, [one])
        alone.append(found.count)
    assert max(alone) <= expected <= 1 + sum(count - 1 for count in alone)


def test_dense_passes_wait_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    pooler = make(capacity=800)
    expected = send(pooler, [CROWDED] * 5)
    # two texts have more
    monkeypatch.setattr(pooler_module, "DENSE_LOGITS", 60 * 8 * 3 + 1)
    with waits() as found:
        outputs = send(pooler, [CROWDED] * 5)
    assert found.count == 1 + 3
    for ours, other in zip(outputs, expected, strict=True):
        assert ours.places.tolist() == other.places.tolist()
        assert len(ours.places) == 3 * (60 * 8 - 28)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_entities_are_the_same_with_and_without_a_wait_for_counts(count: int) -> None:
    pooler = make(count=count)
    entities = item(30, task(3, 0.3, single=True, attributes=2), task(2, 0.3, single=True), classes=2)
    (alone,) = send(pooler, [entities])
    beside, records = send(pooler, [entities, item(30, task(3, 0.3))])
    assert alone.counts.tolist() == [count] * 2
    assert alone.places.tolist() == beside.places.tolist()
    # a batch of another size adds up in another order
    torch.testing.assert_close(alone.logits, beside.logits, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(alone.attributes, beside.attributes, atol=1e-3, rtol=1e-4)
    assert bool(len(alone.places)) == bool(count)
    assert set(alone.places[:, 1]) <= {0}
    assert set(records.places[:, 1]) == set(range(count))


def test_a_text_that_shares_a_request_is_answered_as_alone() -> None:
    pooler = make(count=2)
    items = [item(30, task(3, 0.3)), item(12, task(2, 0.3, single=True, attributes=1), classes=3), item(5, classes=2)]
    for one, shared in zip(items, send(pooler, items), strict=True):
        (alone,) = send(pooler, [one])
        assert shared.places.tolist() == alone.places.tolist()
        for name in ("count_logits", "logits", "attributes"):
            torch.testing.assert_close(getattr(shared, name), getattr(alone, name), atol=1e-3, rtol=1e-4)
        for ours, other in zip(shared.classes, alone.classes, strict=True):
            torch.testing.assert_close(ours, other, atol=1e-3, rtol=1e-4)


def test_a_request_whose_texts_are_not_those_of_its_marks_is_not_answered() -> None:
    pooler, items = make(count=2), [item(8, classes=2), item(8, classes=2)]
    hidden = torch.randn(32, SIZE)
    sound = payload.encode_texts(items, [8, 8])
    for wrong in (payload.encode_texts([*items, items[0]], [4, 8, 4]), sound | {"sizes": b"\0"}):
        first, second = pooler(hidden, metadata([16, 16], [wrong | {"token_marks": sound["token_marks"]}, sound]))
        assert first.shape == (0, payload.COLUMNS)
        assert len(payload.split(second, items)) == 2


def test_attributes_without_any_candidate_are_a_table_without_rows() -> None:
    attributed = item(10, task(3, 0.5, single=True, attributes=2))
    for items in ([attributed], [attributed, item(10, task(2, 0.5))]):
        output, *_ = send(make(count=0), items)
        assert output.places.shape == (0, 5)
        assert output.attributes.shape == (0, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_else_waits_on_a_gpu(layer: str) -> None:
    pooler = make(layer, capacity=800, count=2).cuda()
    items = [ENTITIES, RECORDS, CROWDED, ATTRIBUTED]
    expected = send(pooler, items, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = send(pooler, items, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, other in zip(found, expected, strict=True):
        assert ours.places.tolist() == other.places.tolist()
        torch.testing.assert_close(ours.logits, other.logits)
