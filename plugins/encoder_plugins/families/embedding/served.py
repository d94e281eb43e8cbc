"""What an artifact holds for an engine that runs an encoder of ours. Neither torch nor vLLM is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, join
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.prep.checkpoint_json import for_engine

# the field of the artifact's config.json that has the Dense modules
DENSE_KEY = "dense_modules"
# what precedes a Dense module's number in the artifact's weights
DENSE = "dense."


def served_config(config: Mapping[str, Any], architecture: str, chain: Sequence[DenseSpec]) -> dict[str, Any]:
    """Return the content of the engine's config.json.

    Args:
        config: The published one.
        architecture: The engine's name for the encoder.
        chain: The checkpoint's Dense modules.
    """
    return {
        **for_engine(config),
        "architectures": [architecture],
        DENSE_KEY: [dataclasses.asdict(spec) for spec in chain],
    }


def served_layout(encoder: CheckpointLayout, chain: Sequence[DenseSpec]) -> CheckpointLayout:
    """Return the tensors that the engine loads.

    Args:
        encoder: Those of the encoder.
        chain: The Dense modules.
    """
    return join(encoder.under("", "encoder."), dense.layout(chain, DENSE, "pooler.projector.layers."))
