"""From texts to the tokens of an engine request, as processors of ColPali's kind make them. Pure but for the tokenizer's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from encoder_plugins.families.retrieval.config import InputType, RetrievalConfig
from encoder_plugins.families.retrieval.tokens import TextTokenizer, TokenisedText
from encoder_plugins.families.vision.config import VisualConfig


class VisualTokenizer(TextTokenizer):
    """Makes tokens of queries and documents; used by several threads at once.

    Args:
        folder: The artifact's model folder.
        config: What decides tokens and rows.
        visual: What follows a query.
    """

    def __init__(self, folder: Path, config: RetrievalConfig, visual: VisualConfig) -> None:
        super().__init__(folder, config)
        self._visual = visual

    def __call__(self, texts: Sequence[str], kind: InputType) -> list[TokenisedText]:
        """Return the tokens of each text."""
        found = super().__call__(texts, kind)
        if kind == "document":
            return found
        queries = [[*text.ids, *self._visual.query_suffix] for text in found]
        return [replace(text, ids=ids, keys=len(ids)) for text, ids in zip(found, queries, strict=True)]
