"""Record what gliner2 computes: one text at a time on the CPU; counts, logits and formatted answers, in float32 and in bfloat16.

Runs in the library's environment only. One text at a time, so that padding plays no part: what a batch changes is for the parity check
to find in the engine.
"""

from __future__ import annotations

import json
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gliner2
import numpy as np
import tokenizers
import torch
import transformers
from gliner2.inference.engine import GLiNER2
from gliner2.inference.schema import Schema
from safetensors import safe_open

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.errors import Unsupported

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30


class Gliner2Recorder:
    """The recorder of GLiNER2's span models, on any encoder."""

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute counts, logits and the answer of every case.

        Returns:
            For each case ``counts`` `[tasks]`, ``count_logits`` `[tasks, 20]`, ``logits`` (of every span inside the text,
            one task behind the other) and ``classes`` (one classification behind the other), in float32, and counts,
            logits of counts and classes with ``_bfloat16`` behind their names. A case gets the library's ``answer``, and its answer in bfloat16.
        """
        del auxiliary
        if trust_remote_code:
            raise Unsupported("gliner2 runs no code of a checkpoint")
        with calm(checkpoint):
            library = load(checkpoint)
            exact = [_recorded(library, case) for case in cases]
            library.to(torch.bfloat16)
            rounded = [_recorded(library, case) for case in cases]
        found: list[Case] = []
        outputs: dict[str, dict[str, Array]] = {}
        for case, one, other in zip(cases, exact, rounded, strict=True):
            found.append({**case, "answer": one["answer"], "answer_bfloat16": other["answer"], "words": one["words"]})
            outputs[case["id"]] = {
                "counts": one["counts"],
                "counts_bfloat16": other["counts"],
                "count_logits": one["count_logits"],
                "count_logits_bfloat16": other["count_logits"],
                "logits": one["logits"],
                "classes": one["classes"],
                "classes_bfloat16": other["classes"],
            }
        return Recording(
            cases=found,
            outputs=outputs,
            about={
                "library": f"gliner2 {gliner2.__version__}",
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            changed={},
        )


RECORDER = Gliner2Recorder()


def load(folder: Path) -> Any:
    """Load a checkpoint in float32.

    Raises:
        Unsupported: The library cannot load it, or would compute with weights that the checkpoint does not have.
    """
    try:
        library = GLiNER2.from_pretrained(str(folder), local_files_only=True, map_location="cpu").eval()
    except Exception as error:
        # libraries raise anything for files that they cannot make a model of; none of it would pass a second time
        raise Unsupported(f"gliner2 cannot load it: {type(error).__name__}: {error}"[:500]) from error
    library.float()
    rows = len(library.processor.tokenizer)
    if (stored := _embedding_rows(folder)) < rows:
        raise Unsupported(
            f"{WEIGHTS} has {stored} rows of embeddings for {rows} tokens: gliner2 would fill up at random"
        )
    return library


def _recorded(library: Any, case: Case) -> dict[str, Any]:
    """Return what ``answered`` does.

    Raises:
        Unsupported: The library cannot compute it.
    """
    try:
        return answered(library, case)
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        if getattr(library.encoder.config, "position_biased_input", False):
            # mostly it has more tokens than that
            reason += f"; encoder_config's max_position_embeddings is {library.encoder.config.max_position_embeddings}"
        raise Unsupported(f"gliner2 cannot compute the case {case['id']}: {reason}"[:500]) from error


def answered(library: Any, case: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the library computes for a case.

    Returns:
        ``tokens``; ``words``, their number, those of choices among them; ``positions`` of the words' first tokens; ``kinds`` of tasks;
        ``marks``: of each task the positions of its marks; ``counts``, ``count_logits``, ``spans`` (of each span task
        `[steps, fields, words, widths]`, None where its count is 0), ``logits``: all of them flat, ``classes``, and the
        formatted ``answer``.
    """
    seen: dict[str, Any] = {}
    compute = library._compute_direct_span_logits_batched
    counts: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []

    def keep(batch: Any, tokens: Any, schemas: Any) -> Any:
        seen["batch"] = batch
        seen["logits"], seen["counts"] = compute(batch, tokens, schemas)
        return seen["logits"], seen["counts"]

    hooks = [
        library.count_pred.register_forward_hook(lambda *passed: counts.append(passed[2])),
        library.classifier.register_forward_hook(lambda *passed: labels.append(passed[2])),
    ]
    library._compute_direct_span_logits_batched = keep
    try:
        answer = library.extract(
            case["text"],
            Schema.from_dict(json.loads(json.dumps(case["schema"]))),
            threshold=case["threshold"],
            include_confidence=True,
            include_spans=True,
            overlap_policy=case["overlap_policy"],
        )
    finally:
        del library._compute_direct_span_logits_batched
        for hook in hooks:
            hook.remove()
    batch = seen["batch"]
    kinds = list(batch.task_types[0])
    chosen = [number for number, kind in enumerate(kinds) if kind != "classifications"]
    spans = [seen["logits"][0][number] for number in chosen]
    arrays = [None if found is None else found.float().numpy() for found in spans]
    # spans beyond the last word have none
    flat = [np.zeros(0, np.float32), *(found[~np.isneginf(found)] for found in arrays if found is not None)]
    none = torch.zeros(0)
    return {
        "tokens": batch.input_ids[0].tolist(),
        "positions": [int(place) for place in batch.text_word_indices[0]][: len(batch.text_tokens[0])]
        if getattr(batch, "text_word_indices", None) is not None
        else None,
        "words": len(batch.text_tokens[0]),
        "kinds": kinds,
        "counts": np.array([seen["counts"][0][number] for number in chosen], np.int64),
        "count_logits": torch.cat([none.reshape(0, 20), *counts]).float().detach().numpy(),
        "spans": arrays,
        "logits": np.concatenate(flat),
        "classes": torch.cat([none, *(found.flatten() for found in labels)]).float().detach().numpy(),
        "answer": json.loads(json.dumps(answer)),
    }


def _embedding_rows(folder: Path) -> int:
    name = "encoder.embeddings.word_embeddings.weight"
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, framework="numpy") as tensors:
            return int(tensors.get_slice(name).get_shape()[0])
    return len(torch.load(folder / PICKLED, map_location="cpu", weights_only=True, mmap=True)[name])


@contextmanager
def calm(checkpoint: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread, as threads that wait by spinning cost more, and without warnings or gradients."""
    before = torch.get_num_threads()
    level = logging.root.manager.disable
    weights = [path for suffix in ("*.safetensors", "*.bin") for path in checkpoint.rglob(suffix)]
    if sum(path.stat().st_size for path in weights) < _SMALL:
        torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        torch.set_num_threads(before)
