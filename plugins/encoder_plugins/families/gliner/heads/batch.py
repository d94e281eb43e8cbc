"""The texts of a packed batch that a head answers, and what each of them wants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.families.gliner.heads.row_groups import GroupRule, RowPlan, TextRows, plan
from encoder_plugins.families.gliner.payload import START, Item

Rows = NDArray[np.float32]

# the sigmoid on the device may round one step away from the processor's, which filters exactly
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Batch:
    """The texts of a batch that are answered.

    Attributes:
        rows: Their words and labels.
        items: `[texts]` what each text wants.
        requests: `[texts]` the request of each text.
        first_words: `[texts]` words of the texts before it in the same request.
        order: `[texts]` int32: the texts, those with most words first.
        thresholds: `[texts]` float32: the logit from which on a span is a candidate.
        classes: `[texts]` how many of the best classes each text wants.
    """

    rows: RowPlan
    items: list[Item]
    requests: list[int]
    first_words: list[int]
    order: NDArray[np.int32]
    thresholds: NDArray[np.float32]
    classes: NDArray[np.int32]

    @classmethod
    def plan(
        cls, requests: Sequence[Sequence[tuple[Item, int]]], lengths: Sequence[int], rules: Mapping[str, GroupRule]
    ) -> Batch:
        """Plan a batch.

        Args:
            requests: The texts of each request, with the tokens of each.
            lengths: Tokens of each request, packed one behind the other.
            rules: The rows that each text has.
        """
        texts: list[TextRows] = []
        items: list[Item] = []
        owners: list[int] = []
        first_words: list[int] = []
        begin = 0
        for request, (pairs, length) in enumerate(zip(requests, lengths, strict=True)):
            start, words = begin, 0
            for item, tokens in pairs:
                texts.append(TextRows(start, tokens, {"words": item.words, "labels": item.labels}))
                items.append(item)
                owners.append(request)
                first_words.append(words)
                start, words = start + tokens, words + len(item.words)
            begin += length
        rows = plan(texts, rules)
        chosen = rows.texts.tolist()
        return cls(
            rows=rows,
            items=[items[text] for text in chosen],
            requests=[owners[text] for text in chosen],
            first_words=[first_words[text] for text in chosen],
            order=np.argsort(-rows.groups["words"].counts, kind="stable").astype(np.int32),
            thresholds=np.asarray([cut(items[text].threshold) for text in chosen], np.float32),
            classes=np.asarray([items[text].classes for text in chosen], np.int32),
        )

    def by_request(self, answers: Sequence[Rows]) -> dict[int, list[Rows]]:
        """Return the candidates of each request; starts count the words of all its texts."""
        found: dict[int, list[Rows]] = {}
        for request, words, table in zip(self.requests, self.first_words, answers, strict=True):
            if words:
                table[:, START] += words
            found.setdefault(request, []).append(table)
        return found


def cut(threshold: float) -> float:
    """Return the logit of a probability, slightly lower; infinite at the ends. NaN becomes infinity, above which is nothing."""
    probability = threshold - _SLACK
    if math.isnan(probability) or probability >= 1.0:
        return math.inf
    return math.log(probability / (1.0 - probability)) if probability > 0.0 else -math.inf
