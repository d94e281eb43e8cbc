"""How far an answer may be from the library's: of each bound a value that passes, and one a little further that fails."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from encoder_plugins import catalog
from encoder_plugins.plugin import resolve

Bounds = Mapping[str, Mapping[str, tuple[float, float]]]

EMBEDDINGS: Bounds = {
    "float32": {
        "cosine": (0.999995, 0.99998),
        "max_abs_error": (5e-6, 2e-5),
        "score_error": (5e-6, 2e-5),
        "rank_gap": (5e-6, 2e-5),
    },
    "float16": {
        "cosine": (0.9997, 0.999),
        "max_abs_error": (3e-3, 8e-3),
        "noise_ratio": (0.5, 1.0),
        "score_error": (3e-3, 8e-3),
        "rank_gap": (3e-3, 8e-3),
    },
    "bfloat16": {
        "cosine": (0.997, 0.99),
        "max_abs_error": (2e-2, 5e-2),
        "noise_ratio": (2.0, 4.0),
        "score_error": (2e-2, 5e-2),
        "rank_gap": (2e-2, 5e-2),
    },
    "fp8": {
        "cosine": (0.97, 0.92),
        "max_abs_error": (0.07, 0.2),
        "noise_ratio": (19.0, 27.0),
        "score_error": (0.15, 0.3),
        "rank_gap": (0.15, 0.3),
    },
}
MULTI_VECTORS: Bounds = {
    "float32": {
        "cosine": (0.999995, 0.99998),
        "max_abs_error": (5e-6, 2e-5),
        "score_error": (5e-6, 2e-5),
        "rank_gap": (5e-6, 2e-5),
    },
    "float16": {
        "cosine": (0.9997, 0.999),
        "max_abs_error": (5e-3, 1.2e-2),
        "noise_ratio": (0.5, 1.0),
        "score_error": (3e-3, 6e-3),
        "rank_gap": (3e-3, 6e-3),
    },
    "bfloat16": {
        "cosine": (0.995, 0.98),
        "max_abs_error": (3e-2, 8e-2),
        "noise_ratio": (1.5, 3.0),
        "score_error": (2e-2, 5e-2),
        "rank_gap": (2e-2, 5e-2),
    },
    "fp8": {
        "cosine": (0.88, 0.78),
        "max_abs_error": (0.2, 0.4),
        "noise_ratio": (19.0, 27.0),
        "score_error": (0.15, 0.3),
        "rank_gap": (0.15, 0.3),
    },
}
# LFM2 multiplies gates, and loses more in bfloat16
GATED: Bounds = {
    **MULTI_VECTORS,
    "bfloat16": {
        "cosine": (0.985, 0.97),
        "max_abs_error": (7e-2, 0.15),
        "noise_ratio": (1.5, 3.0),
        "score_error": (5e-2, 9e-2),
        "rank_gap": (5e-2, 9e-2),
    },
}
EXTRACTION: Bounds = {
    "float32": {
        "score_max": (2e-5, 4e-5),
        "score_p99": (1e-5, 3e-5),
        "score_p50": (3e-6, 1e-5),
        "missing_max": (2e-5, 4e-5),
        "answers": (0.0, 1e-3),
        "counts": (0.0, 1e-3),
    },
    "float16": {
        "score_max": (0.04, 0.1),
        "noise_p99": (0.3, 0.8),
        "noise_p50": (0.3, 0.8),
        "missing_clear": (0.04, 0.1),
        "label_max": (0.015, 0.03),
    },
    "bfloat16": {
        "score_max": (0.25, 0.4),
        "noise_p99": (1.5, 3.0),
        "noise_p50": (1.5, 3.0),
        "missing_clear": (0.25, 0.4),
        "label_max": (0.07, 0.15),
    },
    "fp8": {
        "score_max": (0.7, 0.9),
        "noise_p99": (14.0, 20.0),
        "noise_p50": (14.0, 20.0),
        "missing_clear": (0.7, 0.9),
        "label_max": (0.7, 0.9),
    },
}
PLUGINS: Mapping[str, Bounds] = {
    "sentence_transformer": EMBEDDINGS,
    "embeddinggemma": EMBEDDINGS,
    "moderncolbert": MULTI_VECTORS,
    "colbert": MULTI_VECTORS,
    "lfm2_colbert": GATED,
    "colqwen3": MULTI_VECTORS,
    "collfm2": GATED,
    "nemotron_colembed": MULTI_VECTORS,
    "deberta_gliner2": EXTRACTION,
}


@pytest.mark.parametrize("name", PLUGINS)
def test_bounds_are_where_they_were_found(name: str) -> None:
    tolerances = resolve(catalog.get(name).parity).tolerances
    wanted = PLUGINS[name]
    assert {mode: {bound.metric for bound in bounds} for mode, bounds in tolerances.items()} == {
        mode: set(bounds) for mode, bounds in wanted.items() if mode in tolerances
    }
    for mode, bounds in tolerances.items():
        held = {bound.metric: [bound.holds(value) for value in wanted[mode][bound.metric]] for bound in bounds}
        assert held == {bound.metric: [True, False] for bound in bounds}, mode
