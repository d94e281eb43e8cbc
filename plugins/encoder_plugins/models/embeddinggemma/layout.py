"""Which tensors an artifact has, and how they are named. Neither torch nor vLLM is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from encoder_plugins.backbones import gemma3_settings
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, join
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense import DenseSpec

# the field of the artifact's config.json that has the Dense modules
KEY = "dense_modules"
# what precedes a Dense module's number in the artifact's weights
DENSE = "dense."
# what precedes the encoder's tensors in checkpoints that were saved as a part of a larger model
_PREFIX = "model."


def encoder_layout(config: Any) -> CheckpointLayout:
    """Return the encoder's tensors, which may be below a prefix; raises UnsupportedConfig as ``Settings.read`` does."""
    layout = gemma3_settings.layout(config)
    return dataclasses.replace(layout, aliases={_PREFIX + name: name for name in layout.shapes})


def served_layout(config: Any, chain: Sequence[DenseSpec]) -> CheckpointLayout:
    """Return the tensors that the engine loads.

    Args:
        config: The encoder's configuration.
        chain: The Dense modules.
    """
    return join(encoder_layout(config).under("", "encoder."), dense.layout(chain, DENSE, "pooler.projector.layers."))
