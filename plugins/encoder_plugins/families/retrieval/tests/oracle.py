"""MultiVectorEncoder itself, for tests: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sentence_transformers import MultiVectorEncoder

from encoder_plugins.artifact.reference import Recording
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


def record(folder: str, cases: Sequence[Mapping[str, Any]]) -> Recording:
    """Return what the recorder does, in this process: a process for each checkpoint would import the library anew."""
    return reference.RECORDER.record(Path(folder), {}, cases)
