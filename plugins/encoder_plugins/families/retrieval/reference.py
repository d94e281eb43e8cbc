"""Record what MultiVectorEncoder of sentence-transformers computes: one text at a time on the CPU, in float32 and in bfloat16.

Runs in the library's environment only. One text at a time, so that padding plays no part: what a batch changes is for the
parity check to find in the engine.
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers
from sentence_transformers import MultiVectorEncoder

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import calibration, library_format

# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30


class MultiVectorRecorder:
    """The recorder of retrievers of one vector per token."""

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute rows or scores of every case.

        Returns:
            For each case ``rows`` and ``rows_bfloat16``, both `[rows, dimensions]`; for one with documents ``scores`` and
            ``scores_bfloat16``, both `[documents]`.
        """
        del auxiliary
        if trust_remote_code:
            raise Unsupported("the modules of these checkpoints are the library's own; no code of a checkpoint is run")
        with calm(checkpoint):
            library = load(checkpoint)
            exact = {str(case["id"]): output(library, case, checkpoint) for case in cases}
            calibrated = calibration.record(library)
            rounding = library.bfloat16()
            rounded = {str(case["id"]): output(rounding, case, checkpoint) for case in cases}
        names = {str(case["id"]): "rows" if case["documents"] is None else "scores" for case in cases}
        return Recording(
            cases=cases,
            outputs={id_: {name: exact[id_], f"{name}_bfloat16": rounded[id_]} for id_, name in names.items()},
            about={
                "library": f"sentence-transformers {sentence_transformers.__version__}",
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            calibration=calibrated,
        )


RECORDER = MultiVectorRecorder()


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


def load(checkpoint: Path) -> MultiVectorEncoder:
    """Load a checkpoint in float32, whatever dtype its file or its configuration prefers, and with PyLate's defaults if it is PyLate's.

    Raises:
        Unsupported: The library cannot load it.
    """
    try:
        with completed(checkpoint) as folder:
            library = MultiVectorEncoder(
                str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32}
            )
    except Exception as error:
        # libraries raise anything for files that they cannot make a model of; none of it would pass a second time
        raise Unsupported(f"sentence-transformers cannot load it: {type(error).__name__}: {error}"[:500]) from error
    return library.float().eval()


@contextmanager
def completed(checkpoint: Path) -> Iterator[Path]:
    """Give the folder of a checkpoint, or links to its files and a copy of PyLate's with what PyLate takes where it says nothing."""
    file = checkpoint / library_format.LIBRARY
    # a checkpoint in Stanford's format has no such file
    found = library_format.read_library(checkpoint) if file.is_file() else {}
    if not file.is_file() or found == json.loads(file.read_text(encoding="utf-8")):
        yield checkpoint
        return
    with TemporaryDirectory() as folder:
        for path in checkpoint.iterdir():
            if path != file:
                (Path(folder) / path.name).symlink_to(path.absolute())
        (Path(folder) / file.name).write_text(json.dumps(found), encoding="utf-8")
        yield Path(folder)


def output(library: MultiVectorEncoder, case: Mapping[str, Any], checkpoint: Path) -> Array:
    """Compute the rows of one case, or its scores."""
    text = encode(library, case["text"], case["input_type"], checkpoint, case.get("prompt_name"))
    if case["documents"] is None:
        return np.asarray(text.float().numpy(), dtype=np.float32)
    documents = [encode(library, document, "document", checkpoint) for document in case["documents"]]
    scores: Any = library.similarity([text], documents)[0]
    return np.asarray(scores.float().numpy(), dtype=np.float32)


def encode(library: MultiVectorEncoder, text: str, kind: str, checkpoint: Path, prompt_name: str | None = None) -> Any:
    """Return the rows of one text, a tensor `[rows, dimensions]`, as the checkpoint's own library reads the text."""
    function = library.encode_query if kind == "query" else library.encode_document
    whole = library_format.whole_text(checkpoint, text, kind, prompt_name)
    if whole is not None:
        return function(whole, prompt="", batch_size=1, show_progress_bar=False)
    return function(text, prompt_name=prompt_name, batch_size=1, show_progress_bar=False)
