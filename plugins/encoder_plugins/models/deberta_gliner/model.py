"""GLiNER over a DeBERTa encoder, as a model of vLLM's."""

from __future__ import annotations

from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type

from encoder_plugins.backbones import deberta_v2
from encoder_plugins.families.gliner.model import GlinerSpanModel


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class DebertaGlinerModel(GlinerSpanModel):
    """See ``GlinerSpanModel``."""

    encoder_class = deberta_v2.DebertaV2Encoder
    encoder_layout = staticmethod(deberta_v2.layout)
