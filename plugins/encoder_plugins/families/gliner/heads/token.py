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

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.batch import Batch, Rows, to_host
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.token_head import TokenHead
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
        ends = np.cumsum(batch.rows.groups["words"].counts * labels.astype(np.int64))
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        rows = DeviceRows(batch.rows, hidden.device, order=batch.order, thresholds=batch.thresholds, pairs=offsets)
        vectors = rows.split(self.head.project(rows.gather(hidden)))
        factors = self.head(vectors["words"], vectors["labels"], rows.offsets["words"], rows.extra["order"])
        pair_offsets = rows.extra["pairs"]
        logits = hidden.new_empty(int(offsets[-1]), 3, dtype=torch.float32)
        wanted = hidden.new_empty(len(logits), dtype=torch.bool)
        for begin in range(0, len(logits), self.tile):
            tile = slice(begin, begin + self.tile)
            pairs = torch.arange(begin, min(begin + self.tile, len(logits)), dtype=torch.int32, device=hidden.device)
            text = torch.searchsorted(pair_offsets[1:], pairs, right=True)
            first_label = rows.offsets["labels"][text]
            of_text = rows.offsets["labels"][text + 1] - first_label
            within = pairs - pair_offsets[text]
            words = rows.offsets["words"][text] + within // of_text
            logits[tile] = self.head.score(factors, words, first_label + within % of_text)
            wanted[tile] = logits[tile, 2] >= rows.extra["thresholds"][text]
        found = wanted.nonzero()[:, 0]
        numbers, values = to_host(found, logits[found])
        return tables(numbers, values, offsets, labels)


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
