"""Record what ColQwen3 of sauerkrautlm-colpali computes: one text or image at a time on the CPU, in float32 and in bfloat16.

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
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from sauerkrautlm_colpali import ColQwen3, ColQwen3Processor

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import calibration

# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30


class Processor(ColQwen3Processor):  # type: ignore[misc]
    """The library's own; transformers 5 finds the parts of a processor by the names of its parameters, which the library's hides."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        video_processor: Any = None,
        chat_template: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(image_processor, tokenizer, video_processor, chat_template=chat_template, **others)


class ColQwen3Recorder:
    """The recorder of ColQwen3."""

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
            raise Unsupported("these checkpoints are the library's own classes; no code of a checkpoint is run")
        with calm(checkpoint):
            library = Library(checkpoint)
            exact = {str(case["id"]): library.output(case) for case in cases}
            queries, documents = calibration.texts()
            encoded = [
                *(library.query(text).numpy() for text in queries),
                *(library.document(text).numpy() for text in documents),
                *(exact[str(case["id"])] for case in cases if case["image"] is not None),
            ]
            library.model.bfloat16()
            rounded = {str(case["id"]): library.output(case) for case in cases}
        names = {str(case["id"]): "rows" if case["documents"] is None else "scores" for case in cases}
        return Recording(
            cases=cases,
            outputs={id_: {name: exact[id_], f"{name}_bfloat16": rounded[id_]} for id_, name in names.items()},
            about={
                "library": f"sauerkrautlm-colpali {version('sauerkrautlm-colpali')}",
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            calibration=calibration.stacked(encoded),
        )


RECORDER = ColQwen3Recorder()


class Library:
    """A checkpoint, loaded by the library in float32.

    Raises:
        Unsupported: The library cannot load it, or would leave out a part of it.
    """

    def __init__(self, checkpoint: Path) -> None:
        try:
            self.model, report = ColQwen3.from_pretrained(
                checkpoint,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
            self.processor = Processor.from_pretrained(checkpoint, local_files_only=True)
        except Exception as error:
            # libraries raise anything for files that they cannot make a model of; none of it would pass a second time
            raise Unsupported(f"sauerkrautlm-colpali cannot load it: {type(error).__name__}: {error}"[:500]) from error
        # the library fills what is missing with random numbers, and says nothing
        wrong = {
            kind: sorted(name for name in map(str, report[kind]) if "lm_head" not in name)
            for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        }
        for kind, names in wrong.items():
            if names:
                raise Unsupported(f"sauerkrautlm-colpali loads it with {kind.replace('_', ' ')}: {names[0]}")
        self.model = self.model.float().eval()

    def query(self, text: str) -> torch.Tensor:
        """Return the rows of a query, `[rows, dimensions]`."""
        return self._rows(self.processor.process_queries, text)

    def document(self, document: str | Mapping[str, str]) -> torch.Tensor:
        """Return the rows of a text, or of an image in base64, `[rows, dimensions]`."""
        if isinstance(document, str):
            return self._rows(self.processor.process_texts, document)
        image = Image.open(io.BytesIO(base64.b64decode(document["image"])))
        return self._rows(self.processor.process_images, image)

    def output(self, case: Mapping[str, Any]) -> Array:
        """Compute the rows of one case, or its scores."""
        if case["documents"] is not None:
            query = self.query(case["text"])
            # one at a time: the library fills shorter documents of a batch with rows of zeros, which count as rows
            scores = [self.processor.score([query], [self.document(each)], device="cpu") for each in case["documents"]]
            return np.asarray([score.float().item() for score in scores], dtype=np.float32)
        if case["input_type"] == "query":
            rows = self.query(case["text"])
        else:
            rows = self.document(case["text"] if case["image"] is None else {"image": case["image"]})
        return np.asarray(rows.float().numpy(), dtype=np.float32)

    def _rows(self, process: Callable[[list[Any]], Any], item: object) -> torch.Tensor:
        batch = process([item])
        with torch.inference_mode():
            rows: torch.Tensor = self.model(**batch)[0]
        return rows


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
