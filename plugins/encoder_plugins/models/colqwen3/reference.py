"""Record what ColQwen3 of sauerkrautlm-colpali computes. Runs in the library's environment only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sauerkrautlm_colpali import ColQwen3, ColQwen3Processor

from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision import recording


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
        """Load the checkpoint as its users do, and compute rows or scores of every case, as ``recording.record`` describes."""
        del auxiliary
        if trust_remote_code:
            raise Unsupported("these checkpoints are the library's own classes; no code of a checkpoint is run")
        return recording.record(
            checkpoint,
            lambda: Library(checkpoint),
            cases,
            library=f"sauerkrautlm-colpali {version('sauerkrautlm-colpali')}",
            of=("transformers", "tokenizers", "torch", "numpy"),
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
