"""The head of GLiNER's token-level bi-encoders: words of a packed batch and token ids of labels in, scored words out.

Equal to ``BiEncoderTokenModel`` of gliner 0.2.29: the texts' encoder reads words only, the labels' own encoder gives a vector for each label,
and ``Scorer`` scores all pairs of both as in ``token.py``. The library builds an LSTM that it never applies; there is none here.

Vectors come from ``label_vectors``. What the scorer computes of a label alone is computed once for each label of a batch, however many
texts have it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.row_groups import GroupRule
from encoder_plugins.families.gliner.heads.token import TILE, Pairs, pair_offsets, scored, tables
from encoder_plugins.families.gliner.heads.token_head import TokenHead
from encoder_plugins.families.gliner.payload import TOKEN_COLUMNS, Item, decode_labels

# a profile run has so many labels
_DUMMY_RUNS = tuple(np.array([number], "<i4").tobytes() for number in range(25))


class GlinerBiTokenPooler(GlinerPooler):
    """Answers each request with the scored words of ``gliner/payload.py``, float32 `[pairs, 5]`, by text, word and label.

    One for the vectors of labels is answered with those, float32 `[labels, size]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        labels: The encoder of labels.
        tile: Pairs that are scored at once.
    """

    columns: ClassVar[int] = TOKEN_COLUMNS
    label_forms: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, encoder_size: int, config: GlinerConfig, labels: LabelVectors, *, tile: int = TILE) -> None:
        super().__init__(encoder_size, config)
        self.rules = {"words": GroupRule(may_lack_tokens=True)}
        self.head = TokenHead(encoder_size, replace(config, lstm_layers=0))
        self.labels = labels
        self.tile = tile

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        answers = super().forward(hidden_states, pooling_metadata)
        for number, params in enumerate(pooling_metadata.pooling_params):
            if runs := self._wanted(params.extra_kwargs):
                # each once, as the cache takes them
                rows = {run: row for row, run in enumerate(dict.fromkeys(runs))}
                vectors = self.labels(list(rows), hidden_states).float().cpu()
                answers[number] = vectors[[rows[run] for run in runs]]
        return answers

    def _wanted(self, extra: dict[str, Any] | None) -> tuple[bytes, ...]:
        """Return the labels whose vectors a request wants; none for any other request."""
        try:
            runs = decode_labels(extra) or ()
        except (KeyError, TypeError, ValueError):
            return ()
        return runs if self.labels.accepts(runs) else ()

    def warm_up(self, hidden: Tensor) -> None:
        """Compile the encoder's kernels: the head has none that depend on the number of labels, and no LSTM."""
        self._warm = True
        self.labels.reserve(hidden)

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the scored words of each text that is answered."""
        numbers: dict[bytes, int] = {}
        rows = [
            numbers.setdefault(item.runs[label], len(numbers)) for item in batch.items for label in item.labels.tolist()
        ]
        labels = np.asarray([len(item.labels) for item in batch.items], np.int32)
        offsets = pair_offsets(batch.rows.groups["words"].counts, labels)
        device_rows = DeviceRows(
            batch.rows,
            hidden.device,
            thresholds=batch.thresholds,
            pairs=offsets,
            labels=np.concatenate(([0], np.cumsum(labels))).astype(np.int32),
            rows=np.asarray(rows, np.int32),
        )
        words = device_rows.split(self.head.project(device_rows.gather(hidden)))["words"]
        extra = device_rows.extra
        factors = self.head.factors(words, self.labels(list(numbers), hidden))
        pairs = Pairs(
            int(offsets[-1]),
            extra["pairs"],
            device_rows.offsets["words"],
            extra["labels"],
            extra["thresholds"],
            extra["rows"],
        )
        found, values = scored(self.head, factors, pairs, self.tile)
        return tables(found, values, offsets, labels)

    def _texts(self, extra: dict[str, Any] | None, tokens: int) -> list[tuple[Item, int]]:
        """Return a request's texts with the tokens of each; none for what is not a request of ours."""
        texts = super()._texts(extra, tokens)
        if not texts:
            return texts
        runs = texts[0][0].runs
        named = all(len(item.labels) and item.labels.min() >= 0 and item.labels.max() < len(runs) for item, _ in texts)
        return texts if named and self.labels.accepts(runs) else []

    def _dummy(self, tokens: int) -> Item:
        return replace(super()._dummy(tokens), labels=np.arange(len(_DUMMY_RUNS), dtype=np.int32), runs=_DUMMY_RUNS)
