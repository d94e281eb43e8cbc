"""Which tensors a checkpoint's encoder has, and how they are named. Neither torch nor vLLM is imported."""

from __future__ import annotations

import dataclasses
from typing import Any

from encoder_plugins.backbones import gemma3_settings
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout

# what precedes the encoder's tensors in checkpoints that were saved as a part of a larger model
_PREFIX = "model."


def encoder_layout(config: Any) -> CheckpointLayout:
    """Return the encoder's tensors, which may be below a prefix; raises UnsupportedConfig as ``Settings.read`` does."""
    layout = gemma3_settings.layout(config)
    return dataclasses.replace(layout, aliases={_PREFIX + name: name for name in layout.shapes})
