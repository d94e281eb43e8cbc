"""The head of GLiNER's token-level models: words and labels of a packed batch in, scored words of each request out.

Equal to ``UniEncoderTokenModel`` of gliner 0.2.29: encoder, projection, first-subword rows, LSTM over words only, and for each
pair of a word and a label the logits of "starts here", "ends here" and "is inside" (``Scorer``). Two parts are reordered, which does not
change the result:

- Rows are gathered before the projection, which is a function of a row. A word without a row is zeros after it.
- The inner layer's matrix is split by what it is applied to, so that most of it is computed for each word and each label, and not for
  each pair (``encoder_kernels.token_scores``).

The pairs of all texts of a batch are scored in tiles of one size, so that memory does not grow with words times labels but for five
numbers of each pair. Only pairs whose score as "inside" reaches the text's threshold are wanted: no span holds another one. Where all pairs
are few, they are chosen on the host, which then waits for the device once; otherwise on the device, whose copies are smaller then, and
the host waits for their number before. With ``represent_spans`` they are not the answer; see ``proposed_spans``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_kernels.token_scores import token_scores
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads import proposed_spans
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.token_head import Factors, RepresentingTokenHead, TokenHead, token_head
from encoder_plugins.families.gliner.heads.transfers import nonzero, to_host
from encoder_plugins.families.gliner.payload import TOKEN_COLUMNS, TOKEN_LOGITS

Ints = NDArray[np.int32]

# pairs that are chosen on the host: 3 MiB of logits
FEW_PAIRS = 1 << 18


class GlinerTokenPooler(GlinerPooler):
    """Answers each request with the scored words of ``gliner/payload.py``, float32 `[pairs, 5]`, by text, word and label.

    With ``represent_spans`` it answers with the candidates of ``proposed_spans``, `[candidates, 4]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
    """

    columns: ClassVar[int] = TOKEN_COLUMNS
    label_forms: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__(encoder_size, config)
        self.head = token_head(encoder_size, config)

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Do the same as other heads, and use the memory that spans of their own vectors may need."""
        super().warm_up(hidden)
        if self._warm and isinstance(self.head, RepresentingTokenHead):
            proposed_spans.reserve(self.head, self.head.project(hidden[:1]))

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the scored words of each text that is answered."""
        labels = batch.rows.groups["labels"].counts
        offsets = pair_offsets(batch.rows.groups["words"].counts, labels)
        rows = DeviceRows(batch.rows, hidden.device, order=batch.order, thresholds=batch.thresholds, pairs=offsets)
        vectors = rows.split(self.head.project(rows.gather(hidden)))
        words = self.head.read(vectors["words"], rows.offsets["words"], rows.extra["order"])
        pairs = Pairs(
            int(offsets[-1]),
            rows.extra["pairs"],
            rows.offsets["words"],
            rows.offsets["labels"],
            rows.extra["thresholds"],
        )
        own = np.split(np.arange(labels.sum(), dtype=np.int32), np.cumsum(labels)[:-1])
        return answered(self.head, batch, words, vectors["labels"], pairs, own)


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


def scored(head: TokenHead, factors: Factors, pairs: Pairs) -> tuple[NDArray[np.int64], Rows]:
    """Return the numbers of the pairs that are wanted, ascending, and their logits `[pairs, 3]`."""
    logits = token_scores(
        factors.word,
        factors.label,
        factors.word_factor,
        factors.label_factor,
        head.layers(),
        pairs.words,
        pairs.labels,
        pairs.offsets,
        pairs=pairs.count,
        label_rows=pairs.rows,
    )
    limits = torch.repeat_interleave(pairs.thresholds, pairs.offsets.diff(), output_size=pairs.count)
    wanted = logits[:, 2] >= limits
    if pairs.count <= FEW_PAIRS:
        (values,) = to_host(torch.where(wanted[:, None], logits, torch.nan))
        # no other number differs from itself
        places = np.flatnonzero(values[:, 2] == values[:, 2])
        return places, values[places]
    (found,) = nonzero(wanted)
    places, values = to_host(found, logits[found])
    return places, values


def answered(
    head: TokenHead, batch: Batch, words: Tensor, vectors: Tensor, pairs: Pairs, rows: Sequence[Ints]
) -> list[Rows]:
    """Return the table of each text of a batch.

    Args:
        head: The head.
        batch: The texts.
        words: `[words, size]`: what the head reads, the texts one behind the other.
        vectors: `[labels, size]`: those of labels.
        pairs: The pairs of both.
        rows: For each text the row of each of its labels among ``vectors``, `[labels]` int32.
    """
    labels = np.asarray([len(own) for own in rows], np.int32)
    offsets = batch.rows.groups["words"].offsets
    numbers, values = scored(head, head.factors(words, vectors), pairs)
    if not isinstance(head, RepresentingTokenHead):
        return tables(numbers, values, pair_offsets(np.diff(offsets), labels), labels)
    proposed = proposed_spans.propose(
        numbers, values, [item.threshold for item in batch.items], words=offsets, labels=labels
    )
    return proposed_spans.candidates(head, words, vectors, rows, proposed, batch.thresholds)


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
