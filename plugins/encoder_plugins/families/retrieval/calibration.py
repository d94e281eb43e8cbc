"""The vectors by which int8 and uint8 are calibrated: recorded by the original library in prep, read when a server starts.

The texts are part of this file, half of them queries and half documents. The ranges of a request are those of their vectors, cut and
normalised as the request wants its own. numpy and safetensors only: recorders import it in the library's environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Array

_SUBJECTS = (
    *("The largest city of Finland", "A cheetah in the savannah", "The new tax law", "A vector database"),
    *("The patient's blood pressure", "An old fishing boat", "The quarterly report", "A function in Python"),
    *("The football match on Sunday", "Bread with a thick crust"),
)
_PREDICATES = (
    *("was described in detail by 3 witnesses.", "changed more in 2019 than in the 40 years before.", "needs care."),
    *("is compared with others, e.g. in tables & charts; nobody agrees on the result!",),
    *("often surprises visitors who have only read about it in newspapers or on the internet",),
)


def texts() -> tuple[list[str], list[str]]:
    """Return the queries and the documents."""
    documents = [f"{subject} {predicate}" for subject in _SUBJECTS for predicate in _PREDICATES]
    questions = ("What is known about: {}?", "how much does it cost, {}", "Who wrote that {}?", "{}", "Why: {}")
    queries = [questions[number % len(questions)].format(text[:40]) for number, text in enumerate(reversed(documents))]
    return queries, documents


def record(library: Any) -> Array:
    """Return what an encoder of sentence-transformers computes for the texts: `[vectors, width]`, or all rows `[rows, width]`."""
    queries, documents = texts()
    encoded = [
        *library.encode_query(queries, batch_size=16, show_progress_bar=False, convert_to_numpy=True),
        *library.encode_document(documents, batch_size=16, show_progress_bar=False, convert_to_numpy=True),
    ]
    return stacked([np.asarray(each, np.float32) for each in encoded])


def stacked(encoded: Sequence[Array]) -> Array:
    """Return vectors `[width]`, or matrices `[rows, width]`, one behind the other."""
    return np.concatenate([np.atleast_2d(each) for each in encoded])


def read(model: Path) -> Array | None:
    """Return the calibration vectors of the artifact around a model folder; None where it has none."""
    path = model.parent / manifest.CALIBRATION
    if not path.is_file():
        return None
    from safetensors.numpy import load

    return load(path.read_bytes())[manifest.CALIBRATION_VECTORS]
