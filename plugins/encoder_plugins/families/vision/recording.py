"""Record what an original library of visual retrievers computes: one text or image at a time on the CPU, in float32 and in bfloat16.

Runs in the library's environment only.
"""

from __future__ import annotations

import base64
import io
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.families.retrieval import calibration

# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30


class Library(Protocol):
    """A checkpoint, loaded in float32."""

    def query(self, text: str) -> torch.Tensor:
        """Return the rows of a query, `[rows, dimensions]`."""

    def document(self, text: str | None, image: Image.Image | None) -> torch.Tensor:
        """Return the rows of a text, of an image, or of an image with a text, `[rows, dimensions]`."""

    def score(self, query: torch.Tensor, document: torch.Tensor) -> float:
        """Return the score of a document from both rows."""

    def bfloat16(self) -> None:
        """Compute in bfloat16 from now on."""


def record(
    checkpoint: Path, load: Callable[[], Library], cases: Sequence[Case], *, library: str, of: Sequence[str]
) -> Recording:
    """Compute rows or scores of every case.

    Args:
        checkpoint: The published files.
        load: Loads them as their users do.
        cases: The cases.
        library: What the recording calls the library, with its version.
        of: The packages whose versions are recorded.

    Returns:
        For each case ``rows`` and ``rows_bfloat16``, both `[rows, dimensions]`; for one with documents ``scores`` and
        ``scores_bfloat16``, both `[documents]`.
    """
    with calm(checkpoint):
        loaded = load()
        exact = {str(case["id"]): output(loaded, case) for case in cases}
        queries, documents = calibration.texts()
        encoded = [
            *(loaded.query(text).numpy() for text in queries),
            *(loaded.document(text, None).numpy() for text in documents),
            *(exact[str(case["id"])] for case in cases if case["image"] is not None),
        ]
        loaded.bfloat16()
        rounded = {str(case["id"]): output(loaded, case) for case in cases}
    names = {str(case["id"]): "rows" if case["documents"] is None else "scores" for case in cases}
    return Recording(
        cases=cases,
        outputs={id_: {name: exact[id_], f"{name}_bfloat16": rounded[id_]} for id_, name in names.items()},
        about={
            "library": library,
            **{name: version(name) for name in of},
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        calibration=calibration.stacked(encoded),
    )


def output(library: Library, case: Mapping[str, Any]) -> Array:
    """Compute the rows of one case, or its scores."""
    if case["documents"] is not None:
        query = library.query(case["text"])
        # one at a time: in a batch, libraries fill shorter documents with rows that count
        scores = [library.score(query, _document(library, each)) for each in case["documents"]]
        return np.asarray(scores, dtype=np.float32)
    if case["input_type"] == "query":
        rows = library.query(case["text"])
    else:
        rows = _document(library, {"text": case["text"], "image": case["image"]})
    return np.asarray(rows.float().numpy(), dtype=np.float32)


def _document(library: Library, document: str | Mapping[str, str | None]) -> torch.Tensor:
    if isinstance(document, str):
        return library.document(document, None)
    image = document.get("image")
    return library.document(document.get("text"), None if image is None else opened(image))


def opened(content: str) -> Image.Image:
    """Return the image of a file in base64."""
    return Image.open(io.BytesIO(base64.b64decode(content)))


@contextmanager
def calm(checkpoint: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread, as threads that wait by spinning cost more, and without warnings."""
    before = torch.get_num_threads()
    if sum(path.stat().st_size for path in checkpoint.rglob("*.safetensors")) < _SMALL:
        torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)
