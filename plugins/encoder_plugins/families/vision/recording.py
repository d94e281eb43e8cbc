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
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import calibration

# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30
COLPALI = "sauerkrautlm-colpali"


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
        exact = {str(case["id"]): _case_output(loaded, case) for case in cases}
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


def _case_output(library: Library, case: Mapping[str, Any]) -> Array:
    """Compute the rows of one case, or its scores; raises Unsupported, with the case, for what the library does not take."""
    try:
        return output(library, case)
    except Unsupported as error:
        raise Unsupported(f"inputs: {case['id']}: {error}") from error


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
    """Return the image of a file in base64; raises Unsupported where it is none."""
    try:
        image = Image.open(io.BytesIO(base64.b64decode(content)))
        image.load()
    except Exception as error:
        # Pillow's parsers raise anything
        raise Unsupported(f"an image is not the base64 of a file that Pillow reads: {error}"[:300]) from error
    return image


class ColpaliLibrary:
    """A checkpoint, loaded by sauerkrautlm-colpali in float32.

    Args:
        model: The library's model.
        processor: The library's processor.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model.float().eval()
        self.processor = processor

    def query(self, text: str) -> torch.Tensor:
        """Return the rows of a query, `[rows, dimensions]`."""
        return self._rows(self.processor.process_queries, text)

    def document(self, text: str | None, image: Image.Image | None) -> torch.Tensor:
        """Return the rows of a text, or of an image, `[rows, dimensions]`."""
        if image is None:
            return self._rows(self.processor.process_texts, text)
        return self._rows(self.processor.process_images, image)

    def score(self, query: torch.Tensor, document: torch.Tensor) -> float:
        """Return the score of a document from both rows."""
        return float(self.processor.score([query], [document], device="cpu").float().item())

    def bfloat16(self) -> None:
        """Compute in bfloat16 from now on."""
        self.model.bfloat16()

    def _rows(self, process: Callable[[list[Any]], Any], item: object) -> torch.Tensor:
        batch = process([item])
        with torch.inference_mode():
            rows: torch.Tensor = self.model(**batch)[0]
        return rows


class ColpaliRecorder:
    """Records what sauerkrautlm-colpali computes of one checkpoint format.

    Args:
        load: Loads a checkpoint, given its folder and those of the auxiliary repositories.
    """

    def __init__(self, load: Callable[[Path, Mapping[str, Path]], ColpaliLibrary]) -> None:
        self._load = load

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute rows or scores of every case, as ``record`` describes."""
        if trust_remote_code:
            raise Unsupported("these checkpoints are the library's own classes; no code of a checkpoint is run")
        return record(
            checkpoint,
            lambda: self._load(checkpoint, auxiliary),
            cases,
            library=f"sauerkrautlm-colpali {version('sauerkrautlm-colpali')}",
            of=("transformers", "tokenizers", "torch", "numpy"),
        )


def check_loaded(report: Mapping[str, Any], library: str = COLPALI) -> None:
    """Refuse a checkpoint that was loaded in part: libraries fill what is missing with random numbers, without a word.

    Args:
        report: Names of tensors, under ``missing_keys``, ``unexpected_keys`` and ``mismatched_keys``.
        library: What loaded it.
    """
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(name for name in map(str, report.get(kind, ())) if "lm_head" not in name)
        if names:
            raise Unsupported(f"{library} loads it with {kind.replace('_', ' ')}: {names[0]}")


@contextmanager
def loading(library: str = COLPALI) -> Iterator[None]:
    """Refuse a checkpoint whose loading raises anything: libraries do for files that they cannot make a model of."""
    try:
        yield
    except Exception as error:
        # none of it would pass a second time
        raise Unsupported(f"{library} cannot load it: {type(error).__name__}: {error}"[:500]) from error


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
