"""How sauerkrautlm-colpali loads ColQwen3. Runs in the library's environment only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sauerkrautlm_colpali import ColQwen3, ColQwen3Processor

from encoder_plugins.families.vision.recording import ColpaliLibrary, ColpaliRecorder, check_loaded, loading


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


def load(checkpoint: Path, auxiliary: Mapping[str, Path]) -> ColpaliLibrary:
    """Load a checkpoint.

    Raises:
        Unsupported: The library cannot load it, or would leave out a part of it.
    """
    del auxiliary
    with loading():
        model, report = ColQwen3.from_pretrained(
            checkpoint,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
        )
        processor = Processor.from_pretrained(checkpoint, local_files_only=True)
    check_loaded(report)
    return ColpaliLibrary(model, processor)


RECORDER = ColpaliRecorder(load)
