"""Records what sentence-transformers answers: fp32, on the CPU, one text at a time.

Runs in the prep image only. One text at a time, so that padding plays no part: what a batch changes in the last bit
depends on the library's version, and is what the comparison later is to find in the engine, not in the reference.
Threads play no such part beyond rounding: torch's sums may differ in the last bits by their number, which is orders
of magnitude below any tolerance, so it is recorded and not fixed.
"""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from encoder_plugins.models.sentence_transformer import checkpoint, parity
from encoder_plugins.models.sentence_transformer.parity import Case
from encoder_plugins.reference import Recording


def record(model: Path) -> Recording:
    """Load the checkpoint as its users do, and answer every case."""
    library = load(model)
    cases = parity.cases(checkpoint.read(model))
    return Recording(
        cases=cases,
        expected={case["id"]: answer(library, case) for case in cases},
        about={
            "library": f"sentence-transformers {sentence_transformers.__version__}",
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": str(torch.get_num_threads()),
        },
    )


def load(model: Path) -> SentenceTransformer:
    """Load a checkpoint in fp32, whatever format its file or its configuration prefers."""
    library = SentenceTransformer(
        str(model),
        device="cpu",
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={"dtype": torch.float32},
    )
    return library.float().eval()


def answer(library: SentenceTransformer, case: Case) -> NDArray[np.float32]:
    """Answer one case.

    Returns:
        `[dimensions]`
    """
    asked = without_normalize(library) if case["normalize"] is False else library
    vector = asked.encode(
        case["text"],
        prompt_name=case["prompt_name"],
        truncate_dim=case["dimensions"],
        normalize_embeddings=bool(case["normalize"]),
        batch_size=1,
        show_progress_bar=False,
    )
    return np.asarray(vector, dtype=np.float32)


def without_normalize(library: SentenceTransformer) -> SentenceTransformer:
    """Leave out the Normalize module: what a request with `normalize: false` asks for."""
    return SentenceTransformer(
        modules=[module for module in library if not isinstance(module, Normalize)],
        device="cpu",
        prompts=library.prompts,
        default_prompt_name=library.default_prompt_name,
    )
