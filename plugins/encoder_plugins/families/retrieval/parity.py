"""How cases of retrievers of one vector per token are sent, and how close answers must be.

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
from encoder_plugins.families.retrieval import cases as retrieval_cases
from encoder_plugins.families.retrieval import score_parity, settings
from encoder_plugins.inputs.encodings import decode_base64
from encoder_plugins.parity.protocol import Array, Arrays, Case, Compared, Threshold, Tolerance, Variant
from encoder_plugins.prep.checkpoint_json import integer, read_object

# reasons of the limits, for the plugin's page
_SUMS = (
    "24 bits of mantissa: the engine only sums in another order; on a CPU, four checkpoints of 4 layers came to"
    " 0.9999999 and 1e-6, and their scores to 5e-7"
)
_HALF = (
    "11 bits of mantissa: each layer rounds to 5e-4, and a row is not averaged over tokens; two checkpoints of 4 layers with"
    " random weights came to 0.99997 and 3.6e-3 on a CPU"
)
_HALF_SCORES = "the rows' errors, averaged over the query's rows: 1.2e-3 for the same checkpoints"
_BRAIN = (
    "8 bits of mantissa: each layer rounds to 4e-3; two checkpoints of 4 layers with random weights came to 0.998 and 2.5e-2"
    " on a CPU"
)
_BRAIN_SCORES = "the rows' errors, averaged over the query's rows: 1.0e-2 for the same checkpoints"
_RATIO = (
    "the library in bfloat16 is as far from itself in float32 as rounding takes it, and an engine that rounds at other places"
    " about as far: at most 1.3 times on a CPU"
)
_RATIO_HALF = "float16 has 3 bits more than bfloat16, so an eighth of its rounding; 0.19 was measured on a CPU"
# fp8 of vLLM rounds weights and inputs of the encoder's linear layers to e4m3, which has 4 bits of mantissa
_EIGHT_RATIO = (
    "e4m3 has 4 bits of mantissa to the 8 of bfloat16, so that a rounding is 16 times as large, and weights and inputs are both"
    " rounded, which makes it 23; with rounding as vLLM's, a tiny checkpoint with random weights came to 13.8 on a CPU"
)
_EIGHT = "the same checkpoint came to 0.94 and 0.18; a ratio at its limit makes this of it"
_EIGHT_SCORES = "the rows' errors, averaged over the query's rows: 0.11 for the same checkpoint"
_RANKING = "two documents may change places only where the library's own scores are this close"

FLOAT = Variant("pooling-float", encoding="float")
BASE64 = Variant("pooling-base64", encoding="base64")

# rounding of the library in bfloat16 below this is chance: 2^-9, half a unit in the last place
SMALLEST_NOISE = 2.0**-9
# scores that are all 0 are compared as they are
NO_SCORE = 1e-30


class MultiVectors:
    """The plugin's side of the parity check; ``encoder_plugins.parity.protocol.Parity`` describes each part.

    `cosine` is the smallest of an answer's rows with the library's float32 rows of the same number, `max_abs_error` the
    largest difference of a number in units of the longest row where that is above 1. `noise_ratio` is the distance of all
    rows of a text from the library's float32 rows, divided by the distance that the library itself has in bfloat16.
    `score_error` is the largest difference of a score. `rank_gap` is the largest difference of the library's own scores of
    two documents that changed places. Both are divided by the largest score of the case.
    """

    tolerances: Mapping[str, Tolerance] = {
        "float32": (
            Threshold("cosine", at_least=0.99999, label="min cosine of a row", reason=_SUMS),
            Threshold("max_abs_error", at_most=1e-5, label="max |Δ|", reason=_SUMS),
            Threshold("score_error", at_most=1e-5, label="max |Δ| of a score, relative", reason=_SUMS),
            Threshold("rank_gap", at_most=1e-5, label="gap of exchanged documents, relative", reason=_RANKING),
        ),
        "float16": (
            Threshold("cosine", at_least=0.9995, label="min cosine of a row", reason=_HALF),
            Threshold("max_abs_error", at_most=8e-3, label="max |Δ|", reason=_HALF),
            Threshold(
                "noise_ratio", at_most=0.75, label="error over the library's own in bfloat16", reason=_RATIO_HALF
            ),
            Threshold("score_error", at_most=4e-3, label="max |Δ| of a score, relative", reason=_HALF_SCORES),
            Threshold("rank_gap", at_most=4e-3, label="gap of exchanged documents, relative", reason=_RANKING),
        ),
        "bfloat16": (
            Threshold("cosine", at_least=0.99, label="min cosine of a row", reason=_BRAIN),
            Threshold("max_abs_error", at_most=5e-2, label="max |Δ|", reason=_BRAIN),
            Threshold("noise_ratio", at_most=2.0, label="error over the library's own in bfloat16", reason=_RATIO),
            Threshold("score_error", at_most=3e-2, label="max |Δ| of a score, relative", reason=_BRAIN_SCORES),
            Threshold("rank_gap", at_most=3e-2, label="gap of exchanged documents, relative", reason=_RANKING),
        ),
        "fp8": (
            Threshold("cosine", at_least=0.83, label="min cosine of a row", reason=_EIGHT),
            Threshold("max_abs_error", at_most=0.3, label="max |Δ|", reason=_EIGHT),
            Threshold(
                "noise_ratio", at_most=23.0, label="error over the library's own in bfloat16", reason=_EIGHT_RATIO
            ),
            Threshold("score_error", at_most=0.2, label="max |Δ| of a score, relative", reason=_EIGHT_SCORES),
            Threshold("rank_gap", at_most=0.2, label="gap of exchanged documents, relative", reason=_RANKING),
        ),
    }

    def cases(self, checkpoint: Path, inputs: Inputs) -> list[Case]:
        """Return the built-in cases of the checkpoint, and the user's own."""
        config = read_object(checkpoint, settings.CONFIG)
        width = integer(settings.CONFIG, config, "hidden_size")
        built_in = retrieval_cases.built_in(settings.read(checkpoint, width))
        return [*built_in, *retrieval_cases.user_cases(inputs, built_in)]

    def variants(self) -> Sequence[Variant]:
        """Return both encodings of JSON answers; scores are the same in both."""
        return (FLOAT, BASE64)

    def group(self, case: Case, variant: Variant) -> tuple[object, ...]:
        """Return what cases must share to be sent in one request: kind and prompt; a case of scores is sent alone."""
        del variant
        rows = (case["input_type"], case.get("prompt_name"))
        return rows if case["documents"] is None else ("score", case["id"])

    def weight(self, case: Case) -> int:
        """Return how many texts of a request a case takes."""
        return 1 if case["documents"] is None else len(case["documents"])

    def body(self, together: Sequence[Case], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        first = together[0]
        if first["documents"] is not None:
            return score_parity.body(first)
        texts = {"text": first["text"]} if len(together) == 1 else {"texts": [case["text"] for case in together]}
        prompt = {"prompt_name": first["prompt_name"]} if "prompt_name" in first else {}
        return {"data": {**texts, "input_type": first["input_type"], **prompt, "encoding": variant.encoding}}

    def outputs(self, content: bytes, together: Sequence[Case], variant: Variant) -> list[Array]:
        """Return rows `[rows, dimensions]` or scores `[documents]` of each case.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """
        try:
            data = json.loads(content)["data"]
            if together[0]["documents"] is not None:
                return [score_parity.scores_of(data["results"][0], len(together[0]["documents"]))]
            decode = decode_base64 if variant.encoding == "base64" else _float32
            found = [
                decode(rows).reshape(count, data["dimensions"])
                for rows, count in zip(data["embeddings"], data["rows"], strict=True)
            ]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise WrongAnswer(f"the answer has neither rows nor scores: {error!r}"[:200]) from None
        return found

    def compare(self, case: Case, got: Array, expected: Arrays) -> Compared:
        """Compare rows, or scores, with the library's.

        Raises:
            WrongAnswer: There is another number of rows, or a number that is not finite.
        """
        name = "rows" if case["documents"] is None else "scores"
        reference = expected[name]
        if got.shape != reference.shape:
            raise WrongAnswer(f"{name} of shape {got.shape}; expected is {reference.shape}")
        if not np.isfinite(got).all():
            raise WrongAnswer("a number is not finite")
        ours, theirs = got.astype(np.float64), reference.astype(np.float64)
        if name == "scores":
            return Compared(score_parity.metrics(ours, theirs, least_unit=NO_SCORE))
        lengths = np.linalg.norm(theirs, axis=1)
        products = np.linalg.norm(ours, axis=1) * lengths
        cosines = np.where(products > 0, (ours * theirs).sum(1) / np.maximum(products, 1e-30), (ours == theirs).all(1))
        metrics = {
            "cosine": float(cosines.min()),
            "max_abs_error": float(np.abs(ours - theirs).max()) / max(1.0, float(lengths.max())),
        }
        if (rounded := expected.get("rows_bfloat16")) is not None:
            noise = float(np.linalg.norm(rounded.astype(np.float64) - theirs))
            smallest = SMALLEST_NOISE * float(np.linalg.norm(theirs))
            metrics["noise_ratio"] = float(np.linalg.norm(ours - theirs)) / max(noise, smallest)
        return Compared(metrics)

    def summarise(self, samples: Mapping[str, NDArray[np.float64]]) -> Mapping[str, float]:
        """Return nothing: every case is compared by itself."""
        return {}


def _float32(numbers: Any) -> Array:
    return np.array(numbers, dtype=np.float32)


PARITY = MultiVectors()
