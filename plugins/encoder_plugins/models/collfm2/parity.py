"""How close answers of ColLFM2 must be: as those of every visual retriever, but for bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from encoder_plugins.families.vision.parity import VisualMultiVectors
from encoder_plugins.parity.protocol import Threshold, Tolerance

_RATIO = (
    "the library in bfloat16 is as far from itself in float32 as rounding takes it, and an engine that rounds at other places"
    " about as far: 1.0 times on a CPU"
)
_BRAIN = (
    "8 bits of mantissa, and each convolution multiplies three rounded projections with each other; a checkpoint of 5 layers"
    " with random weights came to 2.7e-2 on a CPU"
)
_BRAIN_SCORES = "the rows' errors, averaged over the query's rows: 1.1e-2 for the same checkpoint"
_RANKING = "two documents may change places only where the library's own scores are this close"


class Lfm2VisualMultiVectors(VisualMultiVectors):
    """See ``MultiVectors``."""

    tolerances: Mapping[str, Tolerance] = MappingProxyType(
        {
            **VisualMultiVectors.tolerances,
            "bfloat16": (
                Threshold("cosine", at_least=0.98, label="min cosine of a row", reason=_BRAIN),
                Threshold("max_abs_error", at_most=0.1, label="max |Δ|", reason=_BRAIN),
                Threshold("noise_ratio", at_most=2.0, label="error over the library's own in bfloat16", reason=_RATIO),
                Threshold("score_error", at_most=6e-2, label="max |Δ| of a score, relative", reason=_BRAIN_SCORES),
                Threshold("rank_gap", at_most=6e-2, label="gap of exchanged documents, relative", reason=_RANKING),
            ),
        }
    )


PARITY = Lfm2VisualMultiVectors()
