"""The library on tiny checkpoints, in its own environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from encoder_checkpoints import gliner as builder
from encoder_checkpoints.original import original
from encoder_plugins.families.gliner import config as gliner_config
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.prompt import PromptBuilder

MAX_WORDS = 120
ORACLE = "encoder_plugins.families.gliner.tests.oracle"


def call(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of ``oracle`` in the library's environment."""
    return original("gliner").call(f"{ORACLE}:{function}", *arguments, **options)


class LibraryTokenizer:
    """What tests use of the library's tokenizer."""

    def __init__(self, folder: str, described: dict[str, Any]) -> None:
        self._folder = folder
        self.backend_tokenizer = Tokenizer.from_str(described["tokenizer"])
        self.all_special_tokens: list[str] = described["special"]

    def tokens(self, word: str) -> list[int]:
        """Return the token ids of one word."""
        found: list[int] = call("tokens", self._folder, word)
        return found


@dataclass(frozen=True)
class Library:
    """The library with one checkpoint.

    Attributes:
        folder: Where it is.
        changes: What its tokenizer has differently; see ``oracle.with_tokenizer``. ``tokenizer`` stays as it is.
    """

    folder: Path
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def _call(self, function: str, *arguments: Any, **options: Any) -> Any:
        if self.changes:
            return call("with_tokenizer", str(self.folder), self.changes, function, *arguments, **options)
        return call(function, str(self.folder), *arguments, **options)

    @cached_property
    def _described(self) -> dict[str, Any]:
        found: dict[str, Any] = call("describe", str(self.folder))
        return found

    @property
    def config(self) -> GlinerConfig:
        return GlinerConfig.from_dict(self._described["config"])

    @cached_property
    def tokenizer(self) -> LibraryTokenizer:
        return LibraryTokenizer(str(self.folder), self._described)

    def builder(self, *, tokenizer_limit: int | None = None) -> PromptBuilder:
        return PromptBuilder(self.tokenizer.backend_tokenizer, self.config, tokenizer_limit=tokenizer_limit)

    def positions(self, text: str, labels: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
        """Return the library's token ids, and the tokens that it reads for each word (-1: none) and each label."""
        found: tuple[list[int], list[int], list[int]] = self._call("positions", text, list(labels))
        return found

    def logits(self, text: str, labels: Sequence[str]) -> torch.Tensor:
        """Return the library's logits for one text: `[words, widths, labels]`."""
        return torch.from_numpy(self._call("logits", text, list(labels)))

    def proposed(self, text: str, labels: Sequence[str], threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """Return first and last words `[spans, 2]` of what words propose, in the library's order, and logits `[spans, labels]`."""
        found: tuple[np.ndarray, np.ndarray] = self._call("proposed", text, list(labels), threshold)
        return found

    def label_vectors(self, labels: Sequence[str]) -> torch.Tensor:
        """Return the library's vectors of labels that have an encoder of their own: `[labels, size]`."""
        return torch.from_numpy(self._call("label_vectors", list(labels)))

    def entities(self, text: str, labels: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("entities", text, list(labels), **options)
        return found

    def pooled(self, tokens: Sequence[int], extra: Mapping[str, Any] | None) -> torch.Tensor:
        """Answer a prompt as our pooler does, from the library's logits for the same tokens."""
        texts = payload.decode(extra)
        assert texts is not None
        [item] = texts
        logits = self._call("logits_of_prompt", list(tokens), item.words.tolist())
        if self.config.head == "token":
            return scored_words(torch.from_numpy(logits), item.threshold)
        return candidates(torch.from_numpy(logits), item.threshold, item.classes)


def candidates(logits: torch.Tensor, threshold: float, classes: int) -> torch.Tensor:
    """Return the table that the pooler makes of logits `[words, widths, labels]`."""
    words = logits.shape[0]
    start, width, label = torch.where(torch.sigmoid(logits) >= threshold - 1e-6)
    inside = start + width < words
    start, width, label = start[inside], width[inside], label[inside]
    columns = [start, width, label, logits[start, width, label]]
    if classes:
        values, numbers = logits[start, width].topk(classes, dim=-1)
        for rank in range(classes):
            columns += [numbers[:, rank], values[:, rank]]
    return torch.stack([column.float() for column in columns], -1)


def scored_words(logits: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the table that the pooler makes of logits `[words, labels, 3]`."""
    word, label = torch.where(torch.sigmoid(logits[..., 2]) >= threshold - 1e-6)
    return torch.cat([torch.stack([word, label], -1).float(), logits[word, label]], -1)


def built(plugin: str, folder: Path, *, for_prep: bool = False) -> Library:
    """Build a checkpoint for the library; unless it is for prep, also write what the processor reads of an artifact."""
    builder.build(folder, plugin, max_len=MAX_WORDS)
    library = Library(folder)
    if not for_prep:
        pretend_prepared(library)
    return library


def pretend_prepared(library: Library) -> None:
    """Write what the processor reads of an artifact."""
    # the library loads the checkpoint before files are added to it
    config = library.config
    (library.folder / "config.json").write_text(json.dumps({gliner_config.KEY: config.to_dict()}))
    library.tokenizer.backend_tokenizer.save(str(library.folder / "tokenizer.json"))


def spread(seed: int, words: int, widths: int, labels: int) -> torch.Tensor:
    """Return random logits with many ties: `[words, widths, labels]`."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(-6, 7, (words, widths, labels)).astype(np.float32)
    return torch.from_numpy(steps / generator.choice([1.0, 2.0, 3.0]).astype(np.float32))
