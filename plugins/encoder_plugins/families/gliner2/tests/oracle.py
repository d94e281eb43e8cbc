"""gliner2 itself, for tests: these functions run in the library's environment, called through ``encoder_checkpoints.original``.

Its processor makes prompts, and its decoder reads planted scores: no weights are needed for either.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from gliner2.inference.overlap import resolve_overlaps
from gliner2.inference.runtime import ExtractorRuntimeMixin
from gliner2.inference.schema import RegexValidator, Schema
from gliner2.processing.word_splitter import WhitespaceTokenSplitter
from gliner2.processor import SchemaTransformer
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from encoder_checkpoints import vocabularies

Array = NDArray[np.float32]
Plan = dict[str, Any]
"""Of one part: ``counts`` and ``scores`` (`[steps, fields, words, 8]` logits) of each span task, ``labels`` of each classification."""

VOCABULARY = 2_000


@cache
def processor() -> Any:
    """Return the library's processor with a small tokenizer of DeBERTa-v3's kind."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    tokenizer, _ = vocabularies.deberta(VOCABULARY)
    names = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return SchemaTransformer(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names))


def tokenizer() -> str:
    """Return the tokenizer with the markers that the library adds."""
    found: Tokenizer = processor().tokenizer.backend_tokenizer
    return found.to_str()


def split(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text with their offsets."""
    return list(WhitespaceTokenSplitter()(text))


def prompts(pairs: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what the library reads of each text and schema: tokens, positions of words and of markers, and prefix words."""
    made = []
    for text, schema in pairs:
        record = processor().transform_record(processor()._normalize_text(text), Schema.from_dict(schema))
        made.append(
            {
                "tokens": list(record.input_ids),
                "words": list(record.text_word_first_positions),
                "tasks": [list(positions) for positions in record.schema_special_positions],
                "kinds": list(record.task_types),
                "prefix": record.text_tokens[: len(record.text_tokens) - len(record.start_token_idx)],
            }
        )
    return made


def resolve(spans: Sequence[tuple[int, int, float]], policy: str) -> list[int]:
    """Return the spans (start, end, score) that a policy keeps, as indices in order."""
    rows = list(enumerate(spans))
    kept = resolve_overlaps(
        rows, policy, score=lambda row: row[1][2], start=lambda row: row[1][0], end=lambda row: row[1][1]
    )
    return [number for number, _ in kept]


def accepted(schema: dict[str, Any]) -> bool:
    """Return whether the library takes a schema."""
    try:
        Schema.from_dict(schema)
    except ValueError:
        return False
    return True


class Planted(ExtractorRuntimeMixin, torch.nn.Module):  # type: ignore[misc]
    """The library's decoder, with scores that were planted instead of computed."""

    architecture = "span"

    def __init__(self) -> None:
        super().__init__()
        self.processor = processor()
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.parts: list[Plan] = []
        self.logits: list[Array] = []

    def encode_tokens(self, batch: Any, hidden_states: Any = None) -> torch.Tensor:
        return torch.zeros(*batch.input_ids.shape, 1)

    def classifier(self, rows: torch.Tensor) -> torch.Tensor:
        logits = torch.from_numpy(self.logits.pop(0))[:, None]
        assert len(logits) == len(rows)
        return logits

    def _compute_direct_span_logits_batched(self, batch: Any, *_: Any) -> Any:
        logits: list[list[torch.Tensor | None]] = []
        counts: list[list[int]] = []
        for kinds, words in zip(batch.task_types, batch.text_tokens, strict=True):
            plan = self.parts.pop(0)
            self.logits += plan["labels"]
            spans = zip(plan["scores"], plan["counts"], strict=True)
            pairs = [(None, 0) if kind == "classifications" else next(spans) for kind in kinds]
            assert all(scores is None or scores.shape[2] == len(words) for scores, _ in pairs)
            logits.append([torch.from_numpy(scores) if count else None for scores, count in pairs])
            counts.append([count for _, count in pairs])
        return logits, counts


@cache
def planted() -> Planted:
    """Return the decoder."""
    return Planted()


def schema_of(data: dict[str, Any]) -> Schema:
    """Return the library's schema of a dictionary, which may have validators: the library's own form has none."""
    plain = copy.deepcopy(data)
    rules: dict[str, Any] = {}
    if isinstance(plain.get("entities"), dict):
        for name, value in plain["entities"].items():
            if isinstance(value, dict):
                rules[name] = value.pop("validators", None)
    for parent, structure in plain.get("structures", {}).items():
        for field in structure["fields"]:
            rules[f"{parent}.{field['name']}"] = field.pop("validators", None)
    schema = Schema.from_dict(plain)
    for table in (schema._entity_metadata, schema._field_metadata):
        for name in table.keys() & rules.keys():
            table[name]["validators"] = [
                RegexValidator(
                    rule["pattern"], rule["mode"], rule["exclude"], sum(getattr(re, flag) for flag in rule["flags"])
                )
                for rule in rules[name] or ()
            ]
    return schema


def extract(
    text: str, schema: dict[str, Any], parts: Sequence[Plan], *, chunks: bool = False, **options: Any
) -> dict[str, Any]:
    """Return the library's answer to a text, with scores and offsets, where the model finds ``parts`` in its parts."""
    model: Any = planted()
    model.parts, model.logits = list(parts), []
    run = model.batch_extract_long if chunks else model.batch_extract
    (found,) = run([text], schema_of(schema), batch_size=64, include_confidence=True, include_spans=True, **options)
    assert not model.parts
    result: dict[str, Any] = found
    return result


def extract_each(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers to many cases: arguments of ``extract``."""
    return [extract(**case) for case in cases]
