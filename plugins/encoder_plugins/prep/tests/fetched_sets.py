"""Label sets fetched for a preparation, without a checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.artifact.staging import Staging
from encoder_plugins.cli.prepare import _label_sets as from_arguments
from encoder_plugins.prep.label_sets import LabelSets
from encoder_plugins.prep.request import LabelSetSource, Request

PLUGIN = "deberta_gliner_linker"


def sha256(content: bytes) -> str:
    """Hash the content of a set."""
    return hashlib.sha256(content).hexdigest()


def sources(*arguments: str) -> tuple[LabelSetSource, ...]:
    """Return the sets that the command line names."""
    return from_arguments(arguments)


def of(output: Path, *given: LabelSetSource, source: str = "", **options: Any) -> tuple[LabelSets, Staging]:
    """Return the sets of a preparation, and its folders."""
    staging = Staging.beside(output)
    staging.root.mkdir(parents=True, exist_ok=True)
    request = Request(plugin=catalog.get(PLUGIN), source=source, output=output, label_sets=given, **options)
    return LabelSets(request, staging), staging


def labels_of(sets: LabelSets) -> dict[str, list[Label]]:
    """Return the labels of sets that were fetched, as servers read them."""
    return {name: list(label_sets.read(file)) for name, file in sets.files.items()}
