"""What the library computes, for tests of every visual retriever; runs in the library's environment.

``plugin`` names the one whose ``reference`` loads the checkpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from encoder_plugins.artifact.reference import Array
from encoder_plugins.families.vision import recording
from encoder_plugins.families.vision.recording import ColpaliLibrary


@cache
def library(plugin: str, checkpoint: str) -> ColpaliLibrary:
    """Return a checkpoint, loaded once."""
    module = importlib.import_module(f"encoder_plugins.models.{plugin}.reference")
    found: ColpaliLibrary = module.load(Path(checkpoint), {})
    return found


def output(plugin: str, checkpoint: str, case: Mapping[str, Any]) -> Array:
    """Return the rows or scores of one case."""
    with recording.calm(Path(checkpoint)):
        return recording.output(library(plugin, checkpoint), case)


def outputs(plugin: str, checkpoint: str, cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Array]]:
    """Return the rows or scores of each case, by its id and by what they are."""
    return {
        case["id"]: {"rows" if case["documents"] is None else "scores": output(plugin, checkpoint, case)}
        for case in cases
    }


def tokens(plugin: str, checkpoint: str, texts: Sequence[str], kind: str) -> list[list[int]]:
    """Return the tokens of each text."""
    processor = library(plugin, checkpoint).processor
    process = processor.process_queries if kind == "query" else processor.process_texts
    return [process([text])["input_ids"][0].tolist() for text in texts]


def image_tokens(plugin: str, checkpoint: str, sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the tokens of a white image of each size, width before height."""
    processor = library(plugin, checkpoint).processor
    return [processor.process_images([Image.new("RGB", size, "white")])["input_ids"][0].tolist() for size in sizes]


def pixels(plugin: str, checkpoint: str, content: str) -> Array:
    """Return the pixels that the model gets of an image in base64, `[patches, numbers]`."""
    image = recording.opened(content)
    found: Array = library(plugin, checkpoint).processor.process_images([image])["pixel_values"][0].numpy()
    return found


def views(plugin: str, checkpoint: str, content: str) -> Array:
    """Return the pixels of all views of an image in base64, `[views, patches, numbers]`."""
    image = recording.opened(content)
    found: Array = library(plugin, checkpoint).processor.process_images([image])["pixel_values"].numpy()
    return found


def with_auxiliary(plugin: str, checkpoint: str, base: str, queries: Sequence[str]) -> list[Array]:
    """Return the rows of queries by a checkpoint whose configuration is in the repository of its base."""
    module = importlib.import_module(f"encoder_plugins.models.{plugin}.reference")
    loaded: ColpaliLibrary = module.load(Path(checkpoint), {"the/base": Path(base)})
    return [loaded.query(query).float().numpy() for query in queries]
