"""The library on checkpoints, for tests: ``outputs`` and ``answer`` run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from encoder_plugins.artifact.reference import Recording


@cache
def _library(folder: Path) -> Any:
    from encoder_plugins.families.gliner2 import reference

    with reference.calm(folder):
        return reference.load(folder)


def outputs(folder: Path, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the library computes for each case; see ``reference.answered``."""
    from encoder_plugins.families.gliner2 import reference

    library = _library(folder)
    with reference.calm(folder):
        return [reference.answered(library, case) for case in cases]


def answer(folder: Path, text: str, schema: dict[str, Any], *, chunks: bool = False, **options: Any) -> dict[str, Any]:
    """Return what the library answers to a text, with scores and offsets; with ``chunks`` as a long one."""
    import torch
    from gliner2.inference.schema import Schema

    library = _library(folder)
    run = library.extract_long if chunks else library.extract
    with torch.inference_mode():
        found: dict[str, Any] = run(
            text, Schema.from_dict(schema), include_confidence=True, include_spans=True, **options
        )
    return found


def called(folder: Path, method: str, texts: Any, given: Any, **options: Any) -> Any:
    """Return what a method of the library returns; the general ones get a schema."""
    import torch
    from gliner2.inference.schema import Schema

    if method.removeprefix("batch_").removesuffix("_long") == "extract":
        given = Schema.from_dict(given)
    with torch.inference_mode():
        return getattr(_library(folder), method)(texts, given, **options)


def record(folder: Path, cases: Sequence[Mapping[str, Any]]) -> Recording:
    """Return what prep records of a checkpoint."""
    from encoder_plugins.families.gliner2.reference import RECORDER

    return RECORDER.record(folder, {}, cases)
