"""MultiVectorEncoder itself, for tests: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sentence_transformers import MultiVectorEncoder

from encoder_plugins.artifact.reference import Array
from encoder_plugins.families.retrieval import reference


@cache
def library(folder: str) -> MultiVectorEncoder:
    """Load a checkpoint once, in float32."""
    return reference.load(Path(folder))


def tokens(folder: str, texts: Sequence[str], kind: str) -> list[tuple[list[int], list[int], list[bool]]]:
    """Return ids, attention mask and which tokens have a row, for each text alone."""
    model = library(folder)
    found = []
    for text in texts:
        features = model.preprocess([text], prompt=model.prompts[kind], task=kind)
        ids, attended = features["input_ids"][0].tolist(), features["attention_mask"][0].tolist()
        mask: Any = model[[type(module).__name__ for module in model].index("MultiVectorMask")]
        kept = mask({**features}, task=kind)["attention_mask"][0].bool().tolist()
        found.append((ids, attended, kept))
    return found


def outputs(folder: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return rows or scores of each case in float32, as the recorder does."""
    with reference.calm(Path(folder)):
        found = {str(case["id"]): reference.output(library(folder), case) for case in cases}
    names = {str(case["id"]): "rows" if case["documents"] is None else "scores" for case in cases}
    return {id_: {names[id_]: value} for id_, value in found.items()}
