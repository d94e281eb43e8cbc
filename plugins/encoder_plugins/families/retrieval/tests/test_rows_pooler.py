"""Rows and scores of a packed batch of any mix of requests: equal to those of each request alone, computed by numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from encoder_plugins.families.retrieval import payload
from encoder_plugins.families.retrieval.config import RetrievalConfig, Side, Similarity
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.families.retrieval.tokens import TokenisedText

# vLLM warns about itself when it is imported
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, DIMENSIONS = 12, 5
Rows = NDArray[np.float32]


def pooler(similarity: Similarity = "maxsim", *, normalize: bool = True) -> Any:
    from encoder_plugins.families.retrieval.pooler import RowsPooler

    side = Side(prompt="", most_tokens=64, skips=True)
    dense = [
        DenseSpec(inputs=WIDTH, outputs=WIDTH, bias=True, activation="Tanh", residual=True),
        DenseSpec(inputs=WIDTH, outputs=DIMENSIONS, bias=False, activation="Identity", residual=True),
    ]
    torch.manual_seed(3)
    return RowsPooler(
        RetrievalConfig(
            query=side,
            document=side,
            expansion=None,
            skiplist=(),
            projection=tuple(dense),
            normalize=normalize,
            similarity=similarity,
        )
    )


def expected_rows(of: Any, hidden: Rows) -> Rows:
    """Compute rows `[tokens, dimensions]` in float64."""
    first, second = (
        {name: p.detach().double().numpy() for name, p in each.named_parameters()} for each in of.projection.layers
    )
    x = hidden.astype(np.float64)
    x = np.tanh(x @ first["linear.weight"].T + first["linear.bias"]) + x
    x = x @ second["linear.weight"].T + x @ second["residual.weight"].T
    found: Rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    return found


def metadata(lengths: list[int], extras: list[Any], prompts: list[int] | None = None) -> Any:
    cursor = SimpleNamespace(
        num_scheduled_tokens_cpu=torch.tensor(lengths), prompt_lens_cpu=torch.tensor(prompts or lengths)
    )
    params = [SimpleNamespace(extra_kwargs=extra) for extra in extras]
    return SimpleNamespace(get_pooling_cursor=lambda: cursor, pooling_params=params)


@pytest.mark.parametrize(("similarity", "products"), [("maxsim", 1 << 24), ("maxsim", 40), ("meanmaxsim", 1)])
def test_each_text_gets_what_it_gets_alone(
    similarity: Similarity, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.families.retrieval.pooler.PRODUCTS", products)
    of, generator = pooler(similarity), np.random.default_rng(0)
    # requests of several texts and of one; two have the same queries, two another one each, the others want rows
    requests = [[7, 2, 4], [1], [12], [3, 6], [5, 1], [3], [2, 2]]
    lengths = [sum(request) for request in requests]
    hidden = generator.normal(size=(sum(lengths) + 4, WIDTH)).astype(np.float32)
    queries = [generator.normal(size=(count, DIMENSIONS)).astype(np.float32) for count in (4, 2, 6)]
    from vllm.v1.utils import tensor_data

    sets = [queries[:2], None, queries[2:], queries, queries[:2], None, None]
    texts = [
        [
            TokenisedText([0] * length, length, generator.random(length) < 0.6 if length > 3 else None)
            for length in request
        ]
        for request in requests
    ]
    extras = [
        payload.encode(of_request, None if chosen is None else payload.pack_queries(chosen))
        for of_request, chosen in zip(texts, sets, strict=True)
    ]
    # behind the batch come rows of padding
    found = of(torch.from_numpy(hidden), metadata(lengths, extras))
    each = iter(np.split(hidden[: sum(lengths)], np.cumsum([text for request in requests for text in request])[:-1]))
    for got, of_request, chosen in zip(found, texts, sets, strict=True):
        # a request whose tensor vLLM cannot send to another process is never answered
        assert len(tensor_data(got)) == got.nbytes
        vectors = [next(each) if text.kept is None else next(each)[text.kept] for text in of_request]
        rows = [expected_rows(of, own) for own in vectors]
        if chosen is None:
            np.testing.assert_allclose(got.numpy(), np.concatenate(rows), atol=2e-6)
            continue
        best = [[(query @ own.T).max(1) for query in chosen] for own in rows]
        scores = [[one.mean() if similarity == "meanmaxsim" else one.sum() for one in own] for own in best]
        np.testing.assert_allclose(got.numpy(), scores, rtol=1e-5)


def test_no_request_raises() -> None:
    of = pooler()
    hidden = torch.randn(20, WIDTH)
    packed = payload.pack_queries([np.ones((2, DIMENSIONS), np.float32)])
    broken: list[Any] = [
        {"kept": "text"},
        {"kept": b""},
        {"queries": b"123", "query_counts": packed.counts},
        {"queries": packed.rows, "query_counts": b"1"},
    ]
    sound = payload.encode([TokenisedText([0] * 4, 4, None)], packed)
    found = of(hidden, metadata([4] * 5, [*broken, sound]))
    # what is wrong with a request concerns no other
    assert [tuple(rows.shape) for rows in found] == [*[(4, DIMENSIONS)] * 4, (1, 1)]
    assert of(hidden[:4], metadata([4], [None]))[0].shape == (4, DIMENSIONS)
    # a part of a request has no rows, and a document without rows no score but 0
    part, none = of(
        hidden[:8],
        metadata(
            [4, 4],
            [None, payload.encode([TokenisedText([0] * 4, 4, np.zeros(4, bool))], packed)],
            prompts=[9, 4],
        ),
    )
    assert part.shape == (0, DIMENSIONS)
    assert none.tolist() == [[0.0]]


@pytest.mark.parametrize("length", [1.0, 1e-9, 3e-13, 0.0])
def test_rows_have_length_1_unless_they_are_nothing_or_wanted_as_they_are(length: float) -> None:
    vector = np.zeros((1, DIMENSIONS), np.float32)
    vector[0, :2] = 0.6 * length, 0.8 * length
    for normalize in (True, False):
        of = pooler(normalize=normalize)
        of.projection = torch.nn.Identity()
        # torch's own normalize divides by 1e-12 at least
        expected = vector / max(length, 1e-12) if normalize else vector
        np.testing.assert_allclose(of.rows(torch.from_numpy(vector)).numpy(), expected, rtol=1e-5)


def test_the_products_that_are_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_plugins.families.retrieval.pooler import PRODUCTS

    # bytes of float32
    assert 4 * PRODUCTS <= 64 << 20
    monkeypatch.setattr("encoder_plugins.families.retrieval.pooler.PRODUCTS", 50)
    of, held = pooler(), list[int]()
    plain = torch.Tensor.scatter_reduce_

    def counted(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str) -> torch.Tensor:
        held.append(source.numel())
        return plain(self, dim, index, source, reduce)

    monkeypatch.setattr(torch.Tensor, "scatter_reduce_", counted)
    queries = payload.pack_queries([np.ones((7, DIMENSIONS), np.float32)])
    document = payload.encode([TokenisedText([0] * 20, 20, None)], queries)
    of(torch.randn(20, WIDTH), metadata([20], [document]))
    # two rows of the query times twenty of the document
    assert held == [40, 40, 40, 20]


def test_a_copy_to_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from encoder_plugins.families.retrieval.pooler import _to_device

    copies: list[Any] = []
    values = np.arange(6, dtype=np.int32)[::2]
    assert _to_device(values, torch.device("cpu")).tolist() == [0, 2, 4]
    # this machine has none
    monkeypatch.setattr(
        torch,
        "from_numpy",
        lambda array: SimpleNamespace(
            pin_memory=lambda: SimpleNamespace(
                to=lambda device, **options: copies.append((array.tolist(), device, options))
            )
        ),
    )
    _to_device(values, torch.device("cuda"))
    # only memory that is pinned is copied while the process goes on
    assert copies == [([0, 2, 4], torch.device("cuda"), {"non_blocking": True})]
