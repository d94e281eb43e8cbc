"""GLiNER over a ModernBERT or mmBERT encoder, as a model of vLLM's."""

from __future__ import annotations

from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type

from encoder_plugins.backbones import modernbert
from encoder_plugins.families.gliner.model import GlinerSpanModel


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class MmbertGlinerModel(GlinerSpanModel):
    """See ``GlinerSpanModel``."""

    encoder_class = modernbert.ModernBertEncoder
    encoder_layout = staticmethod(modernbert.layout)
