"""The head of retrievers of one vector per token: rows of a packed batch in, each request's rows or scores out.

Only tokens that have rows are projected. Documents that came with the rows of queries are answered with their scores for
each of them; those of the same queries are scored together, by one matrix product. Nothing is kept between batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones.marked_pooler import MarkedPooler, PooledRequest, requests_of
from encoder_plugins.families.retrieval import payload
from encoder_plugins.families.retrieval.config import RetrievalConfig
from encoder_plugins.families.retrieval.dense_layers import DenseChain

# torch.nn.functional.normalize
EPSILON = 1e-12
# dot products that are held at once: 64 MB
PRODUCTS = 1 << 24


class RowsPooler(MarkedPooler):
    """Answers each request with the float32 rows `[rows, dimensions]` of its texts, or with float32 scores `[texts, queries]`."""

    task = "token_embed"

    def __init__(self, config: RetrievalConfig) -> None:
        super().__init__()
        self.config = config
        # in the model's dtype: there are as many rows as tokens
        self.projection = DenseChain(config.projection, torch.get_default_dtype())

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor for each request; one without rows for a request that is not whole. Never raises for a request."""
        requests = requests_of(pooling_metadata)
        kept = [
            payload.kept_tokens(request.extra, request.tokens) if request.whole else np.zeros(0, np.int32)
            for request in requests
        ]
        rows = self.rows(_selected(hidden_states, kept, [request.tokens for request in requests]))
        counts = [len(positions) for positions in kept]
        scored: dict[int, Tensor] = {}
        firsts = np.cumsum([0, *counts])
        for key, members in _by_queries(requests, self.config.dimensions).items():
            documents = [_documents(requests[member], kept[member], int(firsts[member])) for member in members]
            scores = self.scores(rows, np.concatenate(documents), *key)
            # each contiguous, without which vLLM cannot send it to another process
            each = torch.split(scores.t().contiguous(), [len(own) for own in documents])
            scored |= zip(members, each, strict=True)
        if len(scored) == len(requests):
            return list(map(scored.__getitem__, range(len(requests))))
        # one copy, where vLLM would make one for each request; it waits for the device before it reads any of them
        found = torch.split(rows.to("cpu", non_blocking=True), counts)
        return [scored.get(number, own) for number, own in enumerate(found)]

    def rows(self, hidden: Tensor) -> Tensor:
        """Return float32 rows `[rows, dimensions]` of encoder rows `[rows, hidden]`."""
        projected: Tensor = self.projection(hidden).float()
        if not self.config.normalize:
            return projected
        unit: Tensor = torch.nn.functional.normalize(projected, p=2.0, dim=-1, eps=EPSILON)
        return unit

    def scores(self, rows: Tensor, documents: NDArray[np.int64], packed: bytes, query_counts: bytes) -> Tensor:
        """Score the documents of the same queries.

        Args:
            rows: `[rows, dimensions]` float32: of all requests of the batch.
            documents: `[documents, 2]`: the first row of each, and the end of its rows.
            packed: The rows of the queries.
            query_counts: `[queries]` int32: the rows of each.

        Returns:
            `[queries, documents]` float32; 0 for a document without rows.
        """
        device, count = rows.device, len(documents)
        each = np.frombuffer(query_counts, np.int32)
        query = _to_device(payload.unpack_rows(packed, self.config.dimensions), device)
        chosen = np.concatenate([np.arange(first, end) for first, end in documents.tolist()])
        owners = np.repeat(np.arange(count), documents[:, 1] - documents[:, 0])
        scored = rows if len(chosen) == len(rows) else rows.index_select(0, _to_device(chosen, device))
        best = torch.full((len(query), count), -torch.inf, device=device)
        owner = _to_device(owners, device)
        # the products of many queries with a whole batch could take more memory than the profile run saw
        at_once = max(1, PRODUCTS // max(1, len(chosen)))
        for some, into in zip(torch.split(query, at_once), torch.split(best, at_once), strict=True):
            into.scatter_reduce_(1, owner.expand(len(some), -1), some @ scored.T, "amax")
        best = best.masked_fill_(best.isneginf(), 0.0)
        totals = torch.zeros(len(each), count, device=device)
        totals.index_add_(0, _to_device(np.repeat(np.arange(len(each)), each), device), best)
        if self.config.similarity == "meanmaxsim":
            totals /= _to_device(each.astype(np.float32), device)[:, None]
        return totals


def _selected(hidden: Tensor, kept: list[NDArray[np.int32]], lengths: list[int]) -> Tensor:
    """Return the rows of the tokens that are kept; the very same rows where all are."""
    total = sum(lengths)
    if sum(map(len, kept)) == total:
        return hidden[:total]
    firsts = np.cumsum([0, *lengths[:-1]])
    chosen = [positions + first for positions, first in zip(kept, firsts, strict=True)]
    return hidden.index_select(0, _to_device(np.concatenate(chosen), hidden.device))


def _documents(request: PooledRequest, kept: NDArray[np.int32], first: int) -> NDArray[np.int64]:
    """Return the first row of each text of a request, and the end of its rows, `[texts, 2]`.

    Args:
        request: The request.
        kept: `[rows]`: the positions of its tokens that have rows, in order.
        first: The first of its rows in the batch.
    """
    tokens = np.cumsum(request.texts())
    ends = first + np.searchsorted(kept, tokens)
    return np.stack([np.concatenate([[first], ends[:-1]]), ends], axis=1).astype(np.int64)


def _by_queries(requests: list[PooledRequest], dimensions: int) -> dict[tuple[bytes, bytes], list[int]]:
    """Return the requests that are scored, by the queries that came with them."""
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    last: tuple[object, object] | None = None
    members: list[int] = []
    for number, request in enumerate(requests):
        extra = request.extra
        if extra is None or payload.QUERIES not in extra:
            continue
        # the prompts of one HTTP request follow each other, and to compare rows takes a tenth of the time of hashing them
        given = (extra[payload.QUERIES], extra.get(payload.QUERY_COUNTS))
        if given != last:
            last = None
            if (queries := payload.queries_of(extra, dimensions)) is None:
                continue
            packed, each = queries
            last, members = given, groups.setdefault((packed, each.tobytes()), [])
        members.append(number)
    return groups


def _to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
