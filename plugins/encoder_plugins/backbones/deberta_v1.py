"""DeBERTa v1 (He et al., 2020, arXiv 2006.03654), equal to transformers' ``DebertaModel``.

The layers are v2's: what differs is how a checkpoint has queries, keys and values, and that keys have no bias.
"""

from __future__ import annotations

from typing import ClassVar

from encoder_plugins.backbones import deberta_v1_settings, deberta_v2
from encoder_plugins.backbones.deberta_v2_settings import Settings


class DebertaV1Encoder(deberta_v2.DebertaV2Encoder):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out.

    Args:
        vllm_config: The engine's configuration.
        prefix: The encoder's name in the model.
        config: The encoder's own configuration; by default the engine's model's.
    """

    settings_class: ClassVar[type[Settings]] = deberta_v1_settings.Settings
