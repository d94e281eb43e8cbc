"""The head of GLiNER's token-level models: words and labels of a packed batch in, scored words of each request out.

Equal to ``UniEncoderTokenModel`` of gliner 0.2.29: encoder, projection, first-subword rows, LSTM over words only, and for each
pair of a word and a label the logits of "starts here", "ends here" and "is inside" (``Scorer``). Two parts are reordered, which does not
change the result:

- Rows are gathered before the projection, which is a function of a row. A word without a row is zeros after it.
- The inner layer's matrix is split by what it is applied to: ``W [t1; l1; t2 * l2] + b = A t1 + (B l1 + b) + C (t2 * l2)``. The first
  two are computed for each word and each label; only the last one is computed for each pair.

The pairs of all texts of a batch are scored in tiles of one size, so that memory does not grow with words times labels but for three
numbers of each pair. Only pairs whose score as "inside" reaches the text's threshold leave the device: no span holds another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.batch import Batch, Rows, to_host
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.token_head import Factors, TokenHead
from encoder_plugins.families.gliner.payload import TOKEN_COLUMNS, TOKEN_LOGITS

# pairs that are scored at once: 100 MB of inner rows in bfloat16, for a head of width 768
TILE = 16_384


class GlinerTokenPooler(GlinerPooler):
    """Answers each request with the scored words of ``gliner/payload.py``, float32 `[pairs, 5]`, by text, word and label.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        tile: Pairs that are scored at once.
    """

    columns: ClassVar[int] = TOKEN_COLUMNS
    label_forms: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, encoder_size: int, config: GlinerConfig, *, tile: int = TILE) -> None:
        super().__init__(encoder_size, config)
        self.head = TokenHead(encoder_size, config)
        self.tile = tile

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the scored words of each text that is answered."""
        labels = batch.rows.groups["labels"].counts
        offsets = pair_offsets(batch.rows.groups["words"].counts, labels)
        rows = DeviceRows(batch.rows, hidden.device, order=batch.order, thresholds=batch.thresholds, pairs=offsets)
        vectors = rows.split(self.head.project(rows.gather(hidden)))
        factors = self.head(vectors["words"], vectors["labels"], rows.offsets["words"], rows.extra["order"])
        pairs = Pairs(
            int(offsets[-1]),
            rows.extra["pairs"],
            rows.offsets["words"],
            rows.offsets["labels"],
            rows.extra["thresholds"],
        )
        numbers, values = scored(self.head, factors, pairs, self.tile)
        return tables(numbers, values, offsets, labels)


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of a word and a label of the texts of a batch.

    Attributes:
        count: How many there are.
        offsets: `[texts + 1]` int32: each text's first pair, and the end of the last.
        words: `[texts + 1]` int32: each text's first word, and the end of the last.
        labels: `[texts + 1]` int32: each text's first label, and the end of the last.
        thresholds: `[texts]` float32: the logit as inside from which on a pair is wanted.
        rows: `[labels]` int32: the row of each label among the factors; None where they are in this order.
    """

    count: int
    offsets: Tensor
    words: Tensor
    labels: Tensor
    thresholds: Tensor
    rows: Tensor | None = None


def pair_offsets(words: NDArray[np.int32], labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return `[texts + 1]`: the number of each text's first pair, and the end of the last, for counts `[texts]`."""
    return np.concatenate(([0], np.cumsum(words * labels.astype(np.int64)))).astype(np.int32)


def scored(head: TokenHead, factors: Factors, pairs: Pairs, size: int) -> tuple[NDArray[np.int64], Rows]:
    """Return the numbers of the pairs that are wanted, ascending, and their logits `[pairs, 3]`; ``size`` are scored at once."""
    device = pairs.offsets.device
    logits = torch.empty(pairs.count, 3, dtype=torch.float32, device=device)
    wanted = torch.empty(pairs.count, dtype=torch.bool, device=device)
    for begin in range(0, pairs.count, size):
        tile = slice(begin, begin + size)
        numbers = torch.arange(begin, min(begin + size, pairs.count), dtype=torch.int32, device=device)
        text = torch.searchsorted(pairs.offsets[1:], numbers, right=True)
        first_label = pairs.labels[text]
        of_text = pairs.labels[text + 1] - first_label
        within = numbers - pairs.offsets[text]
        labels = first_label + within % of_text
        if pairs.rows is not None:
            labels = pairs.rows[labels]
        logits[tile] = head.score(factors, pairs.words[text] + within // of_text, labels)
        wanted[tile] = logits[tile, 2] >= pairs.thresholds[text]
    found = wanted.nonzero()[:, 0]
    on_host, values = to_host(found, logits[found])
    return on_host, values


def tables(
    numbers: NDArray[np.int64], logits: Rows, offsets: NDArray[np.int32], labels: NDArray[np.int32]
) -> list[Rows]:
    """Return each text's rows `[pairs, 5]`.

    Args:
        numbers: `[pairs]`: ascending numbers of pairs; those of a text count its labels before its words.
        logits: `[pairs, 3]`.
        offsets: `[texts + 1]`: the number of each text's first pair, and the end of the last.
        labels: `[texts]`: labels of each text.
    """
    text = np.searchsorted(offsets[1:], numbers, side="right")
    word, label = np.divmod(numbers - offsets[text], labels[text])
    found = np.empty((len(numbers), TOKEN_COLUMNS), np.float32)
    found[:, :TOKEN_LOGITS] = np.stack([word, label], axis=1)
    found[:, TOKEN_LOGITS:] = logits
    return np.split(found, np.searchsorted(numbers, offsets[1:-1]))
