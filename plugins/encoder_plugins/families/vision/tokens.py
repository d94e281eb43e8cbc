"""From texts to the tokens of an engine request, as processors of ColPali's kind make them. Pure but for the tokenizer's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoder_plugins.families.retrieval.config import InputType, RetrievalConfig
from encoder_plugins.families.retrieval.tokens import TextTokenizer, TokenisedText
from encoder_plugins.families.vision.config import VisualConfig


@dataclass(frozen=True, slots=True)
class VisualText(TokenisedText):
    """A text with what is around it, or an image's prompt with a text.

    Attributes:
        reserved: The first token of the client's own text that no text may contain; None where there is none.
    """

    reserved: str | None = None


class VisualTokenizer(TextTokenizer):
    """Makes tokens of queries and documents; used by several threads at once.

    Args:
        folder: The artifact's model folder.
        config: What decides tokens and rows.
        visual: What is around texts.
    """

    def __init__(self, folder: Path, config: RetrievalConfig, visual: VisualConfig) -> None:
        super().__init__(folder, config)
        self._visual = visual
        self._reserved = frozenset(visual.reserved)
        backend = self._backends["document"]
        prompts = {"query": config.query.prompt, "document": config.document.prompt, "caption": visual.captions or ""}
        # tokens of the prompts themselves, which come before those of a text
        self._own = {kind: len(self._reserved_in(backend.encode(prompt).ids)) for kind, prompt in prompts.items()}

    def __call__(self, texts: Sequence[str], kind: InputType, prompt: str | None = None) -> list[TokenisedText]:
        """Return the tokens of each text, with what is around texts of its kind."""
        suffix = self._visual.query_suffix if kind == "query" else self._visual.document_suffix
        most = self._config.side(kind).most_tokens
        return [self._around(text.ids, kind, suffix, most) for text in super().__call__(texts, kind, prompt)]

    def captioned(self, text: str) -> VisualText:
        """Return the tokens of an image with a text, one token for all of the image among them; nothing is cut."""
        ids = self._backends["document"].encode(f"{self._visual.captions}{text}").ids
        return self._around(ids, "caption", self._visual.document_suffix, None)

    def _around(self, ids: list[int], kind: str, suffix: Sequence[int], most: int | None) -> VisualText:
        further = self._reserved_in(ids)[self._own[kind] :]
        whole = [*ids, *suffix][:most]
        return VisualText(whole, len(whole), None, reserved=self.strings(further[:1])[0] if further else None)

    def _reserved_in(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._reserved]
