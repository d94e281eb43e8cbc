"""How close answers of ColBERT on LFM2 must be: as those of every retriever of one vector per token, but for bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from encoder_plugins.families.retrieval.parity import MultiVectors
from encoder_plugins.parity.protocol import Threshold, Tolerance

_RATIO = (
    "the library in bfloat16 is as far from itself in float32 as rounding takes it, and an engine that rounds at other places"
    " about as far: 1.07 times on a CPU, 1.77 on an H200"
)
_BRAIN = (
    "8 bits of mantissa, and each convolution multiplies three rounded projections with each other; a checkpoint of 5 layers"
    " with random weights came to 0.9946 and 5.3e-2 on a CPU, and the library's own rounding is as large"
)
_BRAIN_SCORES = "the rows' errors, averaged over the query's rows: 2.5e-2 for the same checkpoint"
_RANKING = "two documents may change places only where the library's own scores are this close"


class Lfm2MultiVectors(MultiVectors):
    """See ``MultiVectors``."""

    tolerances: Mapping[str, Tolerance] = MappingProxyType(
        {
            **MultiVectors.tolerances,
            "bfloat16": (
                Threshold("cosine", at_least=0.98, label="min cosine of a row", reason=_BRAIN),
                Threshold("max_abs_error", at_most=0.1, label="max |Δ|", reason=_BRAIN),
                Threshold("noise_ratio", at_most=2.0, label="error over the library's own in bfloat16", reason=_RATIO),
                Threshold("score_error", at_most=6e-2, label="max |Δ| of a score, relative", reason=_BRAIN_SCORES),
                Threshold("rank_gap", at_most=6e-2, label="gap of exchanged documents, relative", reason=_RANKING),
            ),
        }
    )


PARITY = Lfm2MultiVectors()
