"""How a case of text embeddings is sent, and how close an answer must be.

Standard library and numpy only: prep chooses cases with it, and the parity Job runs it, without torch or vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.embedding.cases import OPTIONS, cases, user_cases
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.format import EmbeddingCheckpoint
from encoder_plugins.families.embedding.vectors import Vectors
from encoder_plugins.families.retrieval import score_parity
from encoder_plugins.inputs.encodings import decode_base64
from encoder_plugins.parity.protocol import Arrays, Case, Compared, Threshold, Tolerance, Variant

# reasons of the limits, for the plugin's page
_SUMS = (
    "24 bits of mantissa: the engine only sums in another order; 0.9999999 and 4e-7 were measured on a CPU. vLLM's attention"
    " for float32 on NVIDIA GPUs rounds to TF32 (2.0e-4 on an H200), which is not float32, and fails"
)
_HALF = (
    "11 bits of mantissa: each layer rounds to 5e-4, and errors of some dozen layers add up like noise; the 6 layers of MiniLM"
    " on an H200 came to 0.9999992 and 2.4e-4"
)
_BRAIN = "8 bits of mantissa: each layer rounds to 4e-3; MiniLM on an H200 came to 0.99991 and 2.6e-3"
_RATIO = (
    "the library in bfloat16 is as far from itself in float32 as rounding takes it; an engine that rounds at other places"
    " is about as far, and the largest of some hundred answers up to twice"
)
_RATIO_HALF = (
    "float16 has 3 bits more than bfloat16, so an eighth of its rounding; the limit is a quarter of bfloat16's"
)
# fp8 of vLLM rounds weights and inputs of the encoder's linear layers to e4m3, which has 4 bits of mantissa
_EIGHT_RATIO = (
    "e4m3 has 4 bits of mantissa to the 8 of bfloat16, so that a rounding is 16 times as large, and weights and inputs are both"
    " rounded, which makes it 23; with rounding as vLLM's, a tiny checkpoint with random weights came to 19 on a CPU"
)
_EIGHT = "the same checkpoint came to 0.9948 and 5.2e-2; deeper ones lose more, as in bfloat16"

_SUMS_SCORES = "the errors of two vectors, added up over their numbers: 3.6e-7 was measured on a CPU"
_HALF_SCORES = "the errors of two vectors, which lie in no common direction: MiniLM came to 3.7e-4 on a CPU"
_BRAIN_SCORES = (
    "the errors of two vectors, which lie in no common direction: MiniLM came to 2.4e-3 on a CPU, and a checkpoint with random"
    " weights to 6.3e-3 where the largest error of a number was 4.8e-3"
)
_EIGHT_SCORES = (
    "checkpoints with random weights came to 8.7e-2 at a ratio of 10 and to 6.2e-2 at 17; 23 makes 0.2 of the former"
)
_RANKING = "two documents may change places only where the library's own scores are this close"

FLOAT = Variant("pooling-float", encoding="float")
BASE64 = Variant("pooling-base64", encoding="base64")
OPENAI = Variant("openai-base64", route="/v1/embeddings", encoding="base64")

# a vector of fewer numbers says too little about rounding
FEWEST_NUMBERS = 8
# rounding of the library in bfloat16 below this is chance: 2^-9, half a unit in the last place
SMALLEST_NOISE = 2.0**-9


class EmbeddingParity:
    """A plugin's side of the parity check; ``encoder_plugins.parity.protocol.Parity`` says what each part is for.

    `cosine` is that of the answer and the library's float32 vector, and `max_abs_error` their largest difference in units
    of the vector's length where that is above 1. `noise_ratio` says how far the answer is from the library's float32 vector,
    in units of the distance that the library itself has from it in bfloat16. `score_error` is the largest difference of a score, and
    `rank_gap` the largest difference of the library's own scores of two documents that changed places, both in units of the case's largest
    score where that is above 1.

    Attributes:
        options: What a case says beside its text, each a field of a request; null is what a request without the field means.

    Args:
        checkpoint: The plugin's format.
    """

    options: Mapping[str, Any] = OPTIONS

    tolerances: Mapping[str, Tolerance] = {
        "float32": (
            Threshold("cosine", at_least=0.99999, label="min cosine", reason=_SUMS),
            Threshold("max_abs_error", at_most=1e-5, label="max |Δ|", reason=_SUMS),
            Threshold("score_error", at_most=1e-5, label="max |Δ| of a score", reason=_SUMS_SCORES),
            Threshold("rank_gap", at_most=1e-5, label="gap of exchanged documents", reason=_RANKING),
        ),
        "float16": (
            Threshold("cosine", at_least=0.9995, label="min cosine", reason=_HALF),
            Threshold("max_abs_error", at_most=5e-3, label="max |Δ|", reason=_HALF),
            Threshold(
                "noise_ratio", at_most=0.75, label="error over the library's own in bfloat16", reason=_RATIO_HALF
            ),
            Threshold("score_error", at_most=5e-3, label="max |Δ| of a score", reason=_HALF_SCORES),
            Threshold("rank_gap", at_most=5e-3, label="gap of exchanged documents", reason=_RANKING),
        ),
        "bfloat16": (
            Threshold("cosine", at_least=0.995, label="min cosine", reason=_BRAIN),
            Threshold("max_abs_error", at_most=3e-2, label="max |Δ|", reason=_BRAIN),
            Threshold("noise_ratio", at_most=3.0, label="error over the library's own in bfloat16", reason=_RATIO),
            Threshold("score_error", at_most=3e-2, label="max |Δ| of a score", reason=_BRAIN_SCORES),
            Threshold("rank_gap", at_most=3e-2, label="gap of exchanged documents", reason=_RANKING),
        ),
        "fp8": (
            Threshold("cosine", at_least=0.95, label="min cosine", reason=_EIGHT),
            Threshold("max_abs_error", at_most=0.1, label="max |Δ|", reason=_EIGHT),
            Threshold(
                "noise_ratio", at_most=23.0, label="error over the library's own in bfloat16", reason=_EIGHT_RATIO
            ),
            Threshold("score_error", at_most=0.2, label="max |Δ| of a score", reason=_EIGHT_SCORES),
            Threshold("rank_gap", at_most=0.2, label="gap of exchanged documents", reason=_RANKING),
        ),
    }

    def __init__(self, checkpoint: EmbeddingCheckpoint) -> None:
        self._checkpoint = checkpoint

    def cases(self, folder: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases of the checkpoint in ``folder``, and the user's own."""
        model = self._checkpoint.read(folder)
        built_in = self.built_in(model)
        return [*built_in, *self.from_user(inputs, built_in, model)]

    def built_in(self, model: EmbeddingConfig) -> Sequence[Case]:
        """Return the built-in cases of a checkpoint."""
        return cases(model)

    def from_user(self, inputs: Inputs, others: Sequence[Case], model: EmbeddingConfig) -> Sequence[Case]:
        """Return a user's own cases; raises Unsupported for what is none."""
        return user_cases(inputs, others, model)

    def variants(self) -> Sequence[Variant]:
        """Return both encodings of ``/pooling``, and the route of OpenAI's clients."""
        return (FLOAT, BASE64, OPENAI)

    def group(self, case: Case, variant: Variant) -> tuple[object, ...] | None:
        """Return what cases must share to be sent in one request; OpenAI's API has no field for prompt, length and documents.

        A case of scores is sent alone.
        """
        if variant == OPENAI and any(
            case.get(name) is not None for name in ("documents", *self.options) if name != "dimensions"
        ):
            return None
        return tuple(case[name] for name in self.options) if case.get("documents") is None else ("score", case["id"])

    def weight(self, case: Case) -> int:
        """Return how many texts of a request a case takes."""
        return 1 if case.get("documents") is None else len(case["documents"])

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        first = together[0]
        if first.get("documents") is not None:
            return score_parity.body(first)
        if variant == OPENAI:
            body: dict[str, Any] = {"input": [case["text"] for case in together], "encoding_format": variant.encoding}
            return body if first["dimensions"] is None else {**body, "dimensions": first["dimensions"]}
        texts = {"text": together[0]["text"]} if len(together) == 1 else {"texts": [case["text"] for case in together]}
        return {"data": {**texts, **{name: first[name] for name in self.options}, "encoding": variant.encoding}}

    def outputs(self, content: bytes, together: Sequence[Case], variant: Variant) -> list[Vectors]:
        """Return the vectors of an answer `[dimensions]`, in its order, or the scores `[documents]` of its one case.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """
        try:
            data = json.loads(content)["data"]
            if together[0].get("documents") is not None:
                return [score_parity.scores_of(data["results"][0], len(together[0]["documents"]))]
            embeddings = [one["embedding"] for one in data] if variant == OPENAI else data["embeddings"]
            if variant.encoding == "base64":
                return [decode_base64(text) for text in embeddings]
            return [np.array(numbers, dtype=np.float32) for numbers in embeddings]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise WrongAnswer(f"the answer holds neither embeddings nor scores: {error!r}"[:200]) from None

    def compare(self, case: Case, got: Vectors, expected: Arrays) -> Compared:
        """Compare a vector `[dimensions]`, or scores `[documents]`, with the library's.

        Raises:
            WrongAnswer: The vector has another length, or a value that is not finite.
        """
        reference = expected["vector" if case.get("documents") is None else "scores"]
        if got.shape != reference.shape:
            raise WrongAnswer(f"shape {got.shape}; expected is {reference.shape}")
        if not np.isfinite(got).all():
            raise WrongAnswer("a number is not finite")
        ours, theirs = got.astype(np.float64), reference.astype(np.float64)
        if case.get("documents") is not None:
            return Compared(score_parity.metrics(ours, theirs, least_unit=1.0))
        length = float(np.linalg.norm(theirs))
        lengths = float(np.linalg.norm(ours)) * length
        cosine = float(ours @ theirs) / lengths if lengths else float(np.array_equal(ours, theirs))
        metrics = {"cosine": cosine, "max_abs_error": float(np.abs(ours - theirs).max()) / max(1.0, length)}
        rounded = expected.get("vector_bfloat16")
        if rounded is not None and len(reference) >= FEWEST_NUMBERS and length:
            noise = float(np.linalg.norm(rounded.astype(np.float64) - theirs)) / length
            metrics["noise_ratio"] = float(np.linalg.norm(ours - theirs)) / length / max(noise, SMALLEST_NOISE)
        return Compared(metrics)

    def summarise(self, samples: Mapping[str, NDArray[np.float64]]) -> Mapping[str, float]:
        """Return nothing: every case is compared by itself."""
        return {}
