"""Records what gliner answers: fp32, on the CPU, one text at a time; logits and entities.

Runs in the prep image only. One text at a time, so that padding plays no part: what a batch changes is for the
comparison to find in the engine.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gliner
import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.families.gliner import parity
from encoder_plugins.families.gliner.parity import LOW, Case

# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30

Logits = NDArray[np.float32]


def record(model: Path, inputs: Inputs = ()) -> Recording:
    """Load an artifact's model as its users load the checkpoint, and answer every case, the user's own ones too."""
    with _calm(model):
        library = load(model)
        asked = parity.cases(library.config.max_len)
        asked += parity.user_cases(inputs, asked)
        cases: list[Case] = []
        expected: dict[str, Logits] = {}
        for case in asked:
            words, values = logits(library, case["text"], case["labels"])
            entities, low = (answer(library, case, threshold) for threshold in (case["threshold"], LOW))
            for one in parity.answered(case, width=library.config.max_width, words=words, entities=entities, low=low):
                cases.append(one)
                expected[one["id"]] = values
    return Recording(
        cases=cases,
        expected=expected,
        about={
            "library": f"gliner {gliner.__version__}",
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    )


def load(model: Path) -> Any:
    """Load a checkpoint in fp32; every tensor has to be there, which the library asks for only if told."""
    return gliner.GLiNER.from_pretrained(
        str(model), local_files_only=True, strict=True, dtype=torch.float32, map_location="cpu"
    ).eval()


def logits(library: Any, text: str, labels: list[str]) -> tuple[list[list[int]], Logits]:
    """Return what the library's model computes for one text.

    Returns:
        Start and end of each word that it reads, and `[words, width, labels]`, of spans beyond the last word too.
    """
    prepared = library.prepare_batch([text], labels)
    width = library.config.max_width
    if not prepared["valid_texts"]:
        return [], np.zeros((0, width, len(parity.different(labels))), np.float32)
    batch = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    values = library.run_batch(batch).logits[0].float().numpy()
    read = len(batch["tokens"][0])
    bounds = zip(prepared["start_token_map"][0][:read], prepared["end_token_map"][0][:read], strict=True)
    return [[int(start), int(end)] for start, end in bounds], np.ascontiguousarray(values[:read])


def answer(library: Any, case: Case, threshold: float) -> list[dict[str, Any]]:
    """Return the library's entities."""
    found: list[dict[str, Any]] = library.predict_entities(
        case["text"],
        case["labels"],
        flat_ner=case["flat_ner"],
        threshold=threshold,
        multi_label=case["multi_label"],
    )
    return found


@contextmanager
def _calm(model: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread, as threads that wait by spinning cost more, and without warnings.

    The library warns of texts that it cuts off, and of embeddings with more rows than the tokenizer has entries.
    """
    before = torch.get_num_threads()
    if sum(path.stat().st_size for path in model.rglob("*.safetensors")) < _SMALL:
        torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)
