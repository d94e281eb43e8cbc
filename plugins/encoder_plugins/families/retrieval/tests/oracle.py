"""MultiVectorEncoder itself, for tests: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from sentence_transformers.util.quantization import quantize_embeddings

from encoder_plugins.artifact.reference import Array
from encoder_plugins.families.retrieval import library_format, reference


@cache
def library(folder: str) -> MultiVectorEncoder:
    """Load a checkpoint once, in float32."""
    return reference.load(Path(folder))


def tokens(
    folder: str, texts: Sequence[str], kind: str, prompt_name: str | None = None
) -> list[tuple[list[int], list[int], list[bool]]]:
    """Return ids, attention mask and which tokens have a row, for each text alone."""
    model = library(folder)
    found = []
    for text in texts:
        whole = library_format.whole_text(Path(folder), text, kind, prompt_name)
        prompt = model.prompts[prompt_name or kind] if whole is None else ""
        features = model.preprocess([text if whole is None else whole], prompt=prompt, task=kind)
        ids, attended = features["input_ids"][0].tolist(), features["attention_mask"][0].tolist()
        mask: Any = model[[type(module).__name__ for module in model].index("MultiVectorMask")]
        kept = mask({**features}, task=kind)["attention_mask"][0].bool().tolist()
        found.append((ids, attended, kept))
    return found


def similarities(folder: str, queries: Sequence[str], documents: Sequence[str]) -> Array:
    """Return the scores `[queries, documents]`."""
    model = library(folder)
    with reference.calm(Path(folder)):
        scores: Any = model.similarity(model.encode_query(list(queries)), model.encode_document(list(documents)))
    found: Array = scores.float().numpy()
    return found


def pooled(texts: Sequence[Array], factor: float) -> list[Array]:
    """Return what ``HierarchicalTokenPooling`` makes of each text's rows."""
    pooling = HierarchicalTokenPooling(pool_factor=factor)
    return [found.numpy() for found in pooling.pool([torch.from_numpy(rows) for rows in texts])]


def fewer_rows(folder: str, texts: Sequence[str], factor: float, precision: str, ranges: Array) -> list[Any]:
    """Return the quantised rows of documents, encoded with token pooling."""
    pooling = HierarchicalTokenPooling(pool_factor=factor)
    with reference.calm(Path(folder)):
        rows = [library(folder).encode_document(text, token_pooling=pooling).numpy() for text in texts]
    return [quantize_embeddings(each, precision, ranges=ranges) for each in rows]


def outputs(folder: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return rows or scores of each case in float32, as the recorder does."""
    with reference.calm(Path(folder)):
        found = {str(case["id"]): reference.output(library(folder), case, Path(folder)) for case in cases}
    names = {str(case["id"]): "rows" if case["documents"] is None else "scores" for case in cases}
    return {id_: {names[id_]: value} for id_, value in found.items()}
