"""What the poolers of all GLiNER heads share: the texts of requests in, one table of numbers per request out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones.marked_pooler import MarkedPooler, PooledRequest, requests_of
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.row_groups import GroupRule
from encoder_plugins.families.gliner.payload import Item, decode

# a profile run takes all tokens of a request for words, and the first ones for labels
_DUMMY_LABELS = 25


class GlinerPooler(MarkedPooler):
    """Answers each request with one float32 table on the host. A subclass computes the tables of a batch's texts.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.

    Attributes:
        columns: Columns of the table of a request without class probabilities.
        label_forms: Numbers of labels that the head's kernels are compiled for.
    """

    # one row per candidate, which no other task of vLLM can carry
    task = "token_classify"
    columns: ClassVar[int]
    label_forms: ClassVar[tuple[int, ...]]

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__()
        self._encoder_size = encoder_size
        self.config = config
        self.rules: Mapping[str, GroupRule] = {
            "words": GroupRule(may_lack_tokens=True),
            "labels": GroupRule(shift=0 if config.embed_class_token else 1),
        }
        self._warm = False

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        sent = requests_of(pooling_metadata)
        lengths = [request.tokens for request in sent]
        requests = [self._texts(request) if request.whole else [] for request in sent]
        if hidden_states.is_cuda and not self._warm:
            self.warm_up(hidden_states)
        batch = Batch.plan(requests, lengths, self.rules)
        found = self._answer(hidden_states, batch) if len(batch.rows.texts) else []
        answers = {
            request: torch.from_numpy(np.concatenate(tables) if len(tables) > 1 else tables[0])
            for request, tables in batch.by_request(found).items()
            if sent[request].extra
        }
        return [
            answers[request] if request in answers else torch.zeros(0, self.columns) for request in range(len(lengths))
        ]

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Compile every form of the head's kernels, in vLLM's first profile run, so that no client waits for a compiler.

        Args:
            hidden: `[tokens, encoder]`, as many as a profile run has; with fewer than 512 nothing is run.
        """
        if hidden.shape[0] < 512:
            return
        self._warm = True
        word = np.zeros(1, np.int32)
        # what depends on the number of labels; then the LSTM's form for many sequences
        batches = [[Item(word, np.arange(labels, dtype=np.int32), 0.5, classes=1)] for labels in self.label_forms]
        for items in (*batches, [Item(word, word, 0.5)] * 129):
            tokens = max(len(items[0].labels) + 1, 2)
            requests = [[(item, tokens)] for item in items]
            self._answer(hidden[: tokens * len(items)], Batch.plan(requests, [tokens] * len(items), self.rules))

    @abstractmethod
    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the table of each text that is answered; the first column counts the text's words."""

    def _texts(self, request: PooledRequest) -> list[tuple[Item, int]]:
        """Return a request's texts with the tokens of each; none for what is not a request of ours."""
        try:
            items = decode(request.extra)
        except (KeyError, TypeError, ValueError):
            return []
        if items is None:
            return [] if request.extra else [(self._dummy(request.tokens), request.tokens)]
        counts = request.texts().tolist()
        return list(zip(items, counts, strict=True)) if len(items) == len(counts) else []

    def _dummy(self, tokens: int) -> Item:
        words = np.arange(min(tokens, self.config.max_words), dtype=np.int32)
        return Item(words, words[:_DUMMY_LABELS], 0.5)
