"""The library itself, on tiny checkpoints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoder_checkpoints import gliner as builder
from encoder_plugins.families.gliner import config as gliner_config
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.prompt import PromptBuilder

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")
    from gliner import GLiNER

MAX_WORDS = 120


@dataclass(frozen=True)
class Library:
    """The library with one tiny checkpoint."""

    folder: Path
    model: Any

    @property
    def config(self) -> GlinerConfig:
        config, tokenizer = self.model.config, self.tokenizer
        return GlinerConfig(
            hidden_size=config.hidden_size,
            max_width=config.max_width,
            max_words=config.max_len,
            class_token=config.ent_token,
            class_token_id=config.class_token_index,
            separator_token=config.sep_token,
            separator_token_id=tokenizer.convert_tokens_to_ids(config.sep_token),
            embed_class_token=config.embed_ent_token,
            lstm_layers=config.num_rnn_layers,
            projection=True,
        )

    @property
    def tokenizer(self) -> Any:
        return self.model.data_processor.transformer_tokenizer

    def builder(self, *, tokenizer_limit: int | None = None) -> PromptBuilder:
        return PromptBuilder(self.tokenizer.backend_tokenizer, self.config, tokenizer_limit=tokenizer_limit)

    def batch(self, text: str, labels: Sequence[str]) -> dict[str, Any]:
        """Return what the library would give its model for one text."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = self.model.prepare_batch([text], list(labels))
            batch: dict[str, Any] = self.model.collate_batch(prepared["input_x"], prepared["entity_types"])
        return batch

    def positions(self, text: str, labels: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
        """Return the library's token ids, and the tokens that it reads for each word (-1: none) and each label."""
        batch = self.batch(text, labels)
        ids = batch["input_ids"][0].tolist()
        words = [-1] * int(batch["text_lengths"][0, 0])
        for position, number in enumerate(batch["words_mask"][0].tolist()):
            if number:
                words[number - 1] = position
        return ids, words, [place for place, token in enumerate(ids) if token == self.config.class_token_id]

    @torch.inference_mode()
    def logits(self, text: str, labels: Sequence[str]) -> torch.Tensor:
        """Return the library's logits for one text: `[words, widths, labels]`."""
        logits: torch.Tensor = self.model.run_batch(self.batch(text, labels)).logits[0]
        return logits

    def entities(self, text: str, labels: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: list[dict[str, Any]] = self.model.inference([text], list(labels), **options)[0]
        return found

    def pooled(self, tokens: Sequence[int], extra: Mapping[str, Any] | None) -> torch.Tensor:
        """Answer a prompt as our pooler does, from the library's logits for the same tokens."""
        texts = payload.decode(extra)
        assert texts is not None
        [item] = texts
        words_mask = torch.zeros(1, len(tokens), dtype=torch.long)
        for number, position in enumerate(item.words.tolist()):
            if position >= 0:
                words_mask[0, position] = number + 1
        words, widths = len(item.words), self.config.max_width
        starts = torch.arange(words).repeat_interleave(widths)
        ends = starts + torch.arange(widths).repeat(words)
        with torch.inference_mode():
            logits = self.model.model(
                input_ids=torch.tensor([tokens]),
                attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                words_mask=words_mask,
                text_lengths=torch.tensor([[words]]),
                span_idx=torch.stack([starts, ends], -1)[None],
                span_mask=(ends < words)[None],
            ).logits[0]
        return candidates(logits, item.threshold, item.classes)


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


def built(plugin: str, folder: Path, *, for_prep: bool = False) -> Library:
    """Build a checkpoint and load it into the library; unless it is for prep, write what that would."""
    builder.build(folder, plugin, max_len=MAX_WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GLiNER.from_pretrained(str(folder), local_files_only=True)
    library = Library(folder, model)
    if not for_prep:
        pretend_prepared(library)
    return library


def pretend_prepared(library: Library) -> None:
    """Write what the processor reads of an artifact."""
    folder = library.folder
    (folder / "config.json").write_text(json.dumps({gliner_config.KEY: library.config.to_dict()}))
    library.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def spread(seed: int, words: int, widths: int, labels: int) -> torch.Tensor:
    """Return random logits with many ties: `[words, widths, labels]`."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(-6, 7, (words, widths, labels)).astype(np.float32)
    return torch.from_numpy(steps / generator.choice([1.0, 2.0, 3.0]).astype(np.float32))
