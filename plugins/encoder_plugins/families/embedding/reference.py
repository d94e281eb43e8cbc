"""Record what sentence-transformers computes: one text at a time on the CPU, in float32 and in bfloat16.

Runs in the library's environment only. One text at a time, so that padding plays no part: what a batch changes is for the
parity check to find in the engine. The number of threads changes the last bits of a sum, far below any tolerance.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.config import positions_of_texts
from encoder_plugins.families.retrieval import calibration

# bytes of weights up to which one thread records within a minute or two
_SMALL = 2 << 30


class EmbeddingRecorder:
    """The recorder of sentence-transformers checkpoints.

    Args:
        renormalize: Whether a vector that is cut gets length 1 unless a case says otherwise.
    """

    def __init__(self, *, renormalize: bool = False) -> None:
        self._renormalize = renormalize

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute the vector of every case.

        Returns:
            For each case ``vector`` and ``vector_bfloat16``, both `[dimensions]`; for one with documents ``scores``, `[documents]`.
        """
        del auxiliary
        with few_threads(checkpoint):
            library = load(checkpoint, trust_remote_code=trust_remote_code)
            exact = {str(case["id"]): self._computed(library, case) for case in cases}
            # a request may leave out the Normalize module
            calibrated = calibration.record(without_normalize(library))
            rounding = library.bfloat16()
            rounded = {str(case["id"]): self.encode(rounding, case) for case in cases if case.get("documents") is None}
        return Recording(
            cases=cases,
            outputs={
                name: {"vector": found, "vector_bfloat16": rounded[name]} if name in rounded else {"scores": found}
                for name, found in exact.items()
            },
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

    def _computed(self, library: SentenceTransformer, case: Case) -> Array:
        """Compute a vector as ``encode``, or scores as ``score``.

        Raises:
            Unsupported: The library cannot compute the case.
        """
        try:
            return self.encode(library, case) if case.get("documents") is None else score(library, case)
        except (IndexError, RuntimeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            most = library.max_seq_length
            config = library.transformers_model.config.to_dict()
            positions, usable = config.get("max_position_embeddings"), positions_of_texts(config)
            if most is not None and usable is not None and most > usable:
                unused = f", of which no text has the first {positions - usable}" if usable != positions else ""
                reason = (
                    f"max_seq_length of the Transformer module is {most}, and config.json: max_position_embeddings only"
                    f" {positions}{unused}"
                )
            raise Unsupported(f"sentence-transformers cannot compute the case {case['id']}: {reason}"[:500]) from error

    def encode(self, library: SentenceTransformer, case: Case) -> Array:
        """Compute the vector of one case, `[dimensions]`, with the library's function for the side of retrieval if it says one."""
        model = without_normalize(library) if case["normalize"] is False else library
        function = {None: model.encode, "query": model.encode_query, "document": model.encode_document}[
            case.get("input_type")
        ]
        prompt, title, normalize = case.get("prompt"), case.get("title"), case["normalize"]
        if title is not None:
            prompt = f"title: {title} | text: "
        if normalize is None:
            normalize = self._renormalize and case["dimensions"] is not None
        vector: Any = function(
            case["text"],
            prompt_name=case["prompt_name"],
            prompt=prompt,
            # without its Normalize module, the library's model has lost this
            truncate_dim=library.truncate_dim if case["dimensions"] is None else case["dimensions"],
            normalize_embeddings=normalize,
            batch_size=1,
            show_progress_bar=False,
        )
        return np.asarray(vector, dtype=np.float32)


RECORDER = EmbeddingRecorder()
# for checkpoints whose vectors are meant to be cut and normalised again
MATRYOSHKA_RECORDER = EmbeddingRecorder(renormalize=True)


def score(library: SentenceTransformer, case: Case) -> Array:
    """Compute the scores of one case, `[documents]`, from the vectors of its query and of each document."""
    options: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
    query = library.encode_query([case["text"]], **options)
    scores: Any = library.similarity(query, library.encode_document(case["documents"], **options))
    return np.asarray(scores[0].numpy(), dtype=np.float32)


@contextmanager
def few_threads(checkpoint: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread.

    torch takes a thread for every core of the machine, whatever part of it a pod has, and they wait by spinning: on
    two busy cores, MiniLM took 19 s with two threads and 0.7 s with one.
    """
    before = torch.get_num_threads()
    weights = [path for suffix in ("*.safetensors", "*.bin") for path in checkpoint.rglob(suffix)]
    if sum(path.stat().st_size for path in weights) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load(checkpoint: Path, *, trust_remote_code: bool = False) -> SentenceTransformer:
    """Load a checkpoint in float32, whatever dtype its file or its configuration prefers.

    Raises:
        Unsupported: The library cannot load it.
    """
    try:
        library = SentenceTransformer(
            str(checkpoint),
            device="cpu",
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            model_kwargs={"dtype": torch.float32},
        )
    except Exception as error:
        # libraries raise anything for files that they cannot make a model of; none of it would pass a second time
        raise Unsupported(f"sentence-transformers cannot load it: {type(error).__name__}: {error}"[:500]) from error
    return library.float().eval()


def without_normalize(library: SentenceTransformer) -> SentenceTransformer:
    """Leave out the Normalize module: what a request with `normalize: false` gets."""
    return SentenceTransformer(
        modules=[module for module in library if not isinstance(module, Normalize)],
        device="cpu",
        prompts=library.prompts,
        default_prompt_name=library.default_prompt_name,
    )
