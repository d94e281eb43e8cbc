"""The head of GLiNER's token-level bi-encoders: words of a packed batch and token ids of labels in, scored words out.

Equal to ``BiEncoderTokenModel`` of gliner 0.2.29: the texts' encoder reads words only, the labels' own encoder gives a vector for each label,
and ``Scorer`` scores all pairs of both as in ``token.py``. The library builds an LSTM that it never applies; there is none here.

Vectors come from ``label_vectors``. What the scorer computes of a label alone is computed once for each label of a batch, however many
texts have it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads import proposed_spans
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.bi_pooler import GlinerBiPooler
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors
from encoder_plugins.families.gliner.heads.token import Pairs, answered, pair_offsets, scored
from encoder_plugins.families.gliner.heads.token_head import RepresentingTokenHead, token_head
from encoder_plugins.families.gliner.payload import TOKEN_COLUMNS


class GlinerBiTokenPooler(GlinerBiPooler):
    """Answers each request with the scored words of ``gliner/payload.py``, float32 `[pairs, 5]`, by text, word and label.

    With ``represent_spans`` it answers with the candidates of ``proposed_spans``, `[candidates, 4]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        labels: The encoder of labels.
    """

    columns: ClassVar[int] = TOKEN_COLUMNS

    def __init__(self, encoder_size: int, config: GlinerConfig, labels: LabelVectors) -> None:
        super().__init__(encoder_size, config, labels)
        self.head = token_head(encoder_size, replace(config, lstm_layers=0))

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Do the same as other bi-encoders, compile the kernels, and use the memory that spans of their own vectors may need."""
        super().warm_up(hidden)
        row = hidden.new_zeros(1, self.config.hidden_size)
        one, first = (torch.tensor(values, dtype=torch.int32, device=hidden.device) for values in ([0, 1], [0]))
        scored(self.head, self.head.factors(row, row), Pairs(1, one, one, one, row[0, :1].float(), first))
        if isinstance(self.head, RepresentingTokenHead):
            proposed_spans.reserve(self.head, self.head.project(hidden[:1]))

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
        pairs = Pairs(
            int(offsets[-1]),
            extra["pairs"],
            device_rows.offsets["words"],
            extra["labels"],
            extra["thresholds"],
            extra["rows"],
        )
        own = np.split(np.asarray(rows, np.int32), np.cumsum(labels)[:-1])
        return answered(self.head, batch, words, self.labels(list(numbers), hidden), pairs, own)
