"""What the library computes, for tests; runs in the library's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from encoder_plugins.artifact.reference import Array
from encoder_plugins.families.vision import recording
from encoder_plugins.models.colqwen3.reference import Library


@cache
def library(checkpoint: str) -> Library:
    """Return a checkpoint, loaded once."""
    return Library(Path(checkpoint))


def output(checkpoint: str, case: Mapping[str, Any]) -> Array:
    """Return the rows or scores of one case."""
    with recording.calm(Path(checkpoint)):
        return recording.output(library(checkpoint), case)


def outputs(checkpoint: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return the rows or scores of each case, by its id and by what they are."""
    return {case["id"]: {"rows" if case["documents"] is None else "scores": output(checkpoint, case)} for case in cases}


def tokens(checkpoint: str, texts: Sequence[str], kind: str) -> list[list[int]]:
    """Return the tokens of each text."""
    processor = library(checkpoint).processor
    process = processor.process_queries if kind == "query" else processor.process_texts
    return [process([text])["input_ids"][0].tolist() for text in texts]


def image_tokens(checkpoint: str, sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the tokens of a white image of each size, width before height."""
    processor = library(checkpoint).processor
    return [processor.process_images([Image.new("RGB", size, "white")])["input_ids"][0].tolist() for size in sizes]


def pixels(checkpoint: str, content: str) -> Array:
    """Return the pixels that the model gets of an image in base64, `[patches, numbers]`."""
    found: Array = library(checkpoint).processor.process_images([recording.opened(content)])["pixel_values"][0].numpy()
    return found
