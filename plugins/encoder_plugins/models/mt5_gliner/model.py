"""GLiNER on an mT5 encoder, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import mt5, mt5_settings
from encoder_plugins.families.gliner.model import GlinerModel


class Mt5GlinerModel(GlinerModel):
    """See ``GlinerModel``."""

    encoder_class = mt5.Mt5Encoder
    encoder_layout = staticmethod(mt5_settings.layout)
