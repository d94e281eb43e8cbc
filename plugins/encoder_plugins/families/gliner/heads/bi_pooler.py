"""What the poolers of GLiNER's bi-encoders share: labels come as token ids, and have an encoder of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones.marked_pooler import PooledRequest
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.row_groups import GroupRule
from encoder_plugins.families.gliner.heads.transfers import to_host
from encoder_plugins.families.gliner.payload import Item, decode_labels

# a profile run has so many labels
_DUMMY_RUNS = tuple(np.array([number], "<i4").tobytes() for number in range(25))


class GlinerBiPooler(GlinerPooler):
    """Answers each request with one table, and one for the vectors of labels with those, float32 `[labels, size]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        labels: The encoder of labels.
    """

    label_forms: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, encoder_size: int, config: GlinerConfig, labels: LabelVectors) -> None:
        super().__init__(encoder_size, config)
        self.rules = {"words": GroupRule(may_lack_tokens=True)}
        self.labels = labels

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        answers = super().forward(hidden_states, pooling_metadata)
        wanted = {
            number: runs
            for number, params in enumerate(pooling_metadata.pooling_params)
            if (runs := self._wanted(params.extra_kwargs))
        }
        # each once, as the cache takes them
        rows = {number: {run: row for row, run in enumerate(dict.fromkeys(runs))} for number, runs in wanted.items()}
        vectors = to_host(*(self.labels(list(own), hidden_states).float() for own in rows.values()))
        for (number, runs), found in zip(wanted.items(), vectors, strict=True):
            answers[number] = torch.from_numpy(found[[rows[number][run] for run in runs]])
        return answers

    def _wanted(self, extra: dict[str, Any] | None) -> tuple[bytes, ...]:
        """Return the labels whose vectors a request wants; none for any other request."""
        try:
            runs = decode_labels(extra) or ()
        except (KeyError, TypeError, ValueError):
            return ()
        return runs if self.labels.accepts(runs) else ()

    def warm_up(self, hidden: Tensor) -> None:
        """Compile the encoder's kernels, and use the memory that labels may need; the LSTM is never applied."""
        self._warm = True
        self.labels.reserve(hidden)

    def _texts(self, request: PooledRequest) -> list[tuple[Item, int]]:
        """Return a request's texts with the tokens of each; none for what is not a request of ours."""
        texts = super()._texts(request)
        if not texts:
            return texts
        runs = texts[0][0].runs
        named = all(len(item.labels) and item.labels.min() >= 0 and item.labels.max() < len(runs) for item, _ in texts)
        return texts if named and self._accepts(runs) else []

    def _accepts(self, runs: tuple[bytes, ...]) -> bool:
        """Return whether all labels can be encoded, or are vectors."""
        return self.labels.accepts(runs)

    def _dummy(self, tokens: int) -> Item:
        return replace(super()._dummy(tokens), labels=np.arange(len(_DUMMY_RUNS), dtype=np.int32), runs=_DUMMY_RUNS)
