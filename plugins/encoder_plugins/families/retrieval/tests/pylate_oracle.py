"""PyLate itself, for tests: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pylate.models import ColBERT
from pylate.scores import colbert_scores

from encoder_plugins.artifact.reference import Array

torch.set_num_threads(1)


@cache
def library(folder: str) -> Any:
    """Load a checkpoint once, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = ColBERT(folder, device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})
    return loaded.float().eval()


def outputs(folder: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return rows or scores of each case, computed one text at a time."""
    return {str(case["id"]): _output(folder, case) for case in cases}


def _output(folder: str, case: Mapping[str, Any]) -> dict[str, Array]:
    text = encoded(folder, [case["text"]], case["input_type"], prompt_name=case.get("prompt_name"))[0]
    if case["documents"] is None:
        return {"rows": text}
    documents = [encoded(folder, [document], "document")[0] for document in case["documents"]]
    return {"scores": np.asarray([_score(text, document) for document in documents], np.float32)}


def _score(query: Array, document: Array) -> float:
    return float(colbert_scores(torch.from_numpy(query)[None], torch.from_numpy(document)[None]))


def encoded(
    folder: str, texts: Sequence[str], kind: str, factor: int = 1, prompt_name: str | None = None
) -> list[Array]:
    """Return the rows of each text, `[rows, dimensions]`.

    PyLate uses a prompt where one is named, be it that of a kind. Each text is a batch of two with itself: in a batch of one the transformers that PyLate 1.6 pins let the expansion tokens of LFM2 into its
    convolutions, which they do in no larger batch, and which later versions never do.
    """
    twice = [text for text in texts for _ in range(2)]
    options = {"is_query": kind == "query", "pool_factor": factor, "show_progress_bar": False}
    name = prompt_name or (kind if kind in library(folder).prompts else None)
    found = library(folder).encode(twice, batch_size=2, prompt_name=name, **options)
    return [np.asarray(rows, np.float32) for rows in found[::2]]


def saved(folder: str, target: Path) -> None:
    """Write a checkpoint anew, by PyLate's own hand."""
    library(folder).save(str(target), create_model_card=False)
