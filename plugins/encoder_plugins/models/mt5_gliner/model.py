"""GLiNER over a mT5 encoder, as a model of vLLM's."""

from __future__ import annotations

from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type

from encoder_plugins.backbones import mt5
from encoder_plugins.families.gliner.model import GlinerSpanModel


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class Mt5GlinerModel(GlinerSpanModel):
    """See ``GlinerSpanModel``."""

    encoder_class = mt5.Mt5Encoder
    encoder_layout = staticmethod(mt5.layout)
