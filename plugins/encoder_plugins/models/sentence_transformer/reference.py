"""Records what sentence-transformers answers: fp32, on the CPU, one text at a time.

Runs in the prep image only. One text at a time, so that padding plays no part: what a batch changes is for the
comparison to find in the engine. The number of threads changes the last bits of a sum, far below any tolerance.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.models.sentence_transformer import checkpoint, parity
from encoder_plugins.models.sentence_transformer.parity import Case

# bytes of weights up to which one thread records within a minute or two
_SMALL = 2 << 30


def record(model: Path, inputs: Inputs = (), *, trust_remote_code: bool = False) -> Recording:
    """Load the checkpoint as its users do, and answer every case, the user's own ones too."""
    settings = checkpoint.read(model)
    cases = parity.cases(settings)
    cases += parity.user_cases(inputs, cases, settings)
    with few_threads(model):
        library = load(model, trust_remote_code=trust_remote_code)
        expected = {case["id"]: answer(library, case) for case in cases}
    return Recording(
        cases=cases,
        expected=expected,
        about={
            "library": f"sentence-transformers {sentence_transformers.__version__}",
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    )


@contextmanager
def few_threads(model: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread.

    torch takes a thread for every core of the machine, whatever part of it a pod has, and they wait by spinning: on
    two busy cores, MiniLM took 19 s with two threads and 0.7 s with one.
    """
    before = torch.get_num_threads()
    if sum(path.stat().st_size for path in model.rglob("*.safetensors")) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(model: Path, *, trust_remote_code: bool = False) -> SentenceTransformer:
    """Load a checkpoint in fp32, whatever format its file or its configuration prefers."""
    library = SentenceTransformer(
        str(model),
        device="cpu",
        local_files_only=True,
        trust_remote_code=trust_remote_code,
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
