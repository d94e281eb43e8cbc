"""Token-level GLiNER on ModernBERT."""

from encoder_plugins.families.gliner.limits import TOKEN_LIMITS
from encoder_plugins.families.gliner.parameters import EXTRA, PARAMETERS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="modernbert_gliner_rerank",
    summary="Zero-shot entity recognition and reranking of candidates by token-level GLiNER checkpoints on ModernBERT.",
    # scored words, a row each: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner.rerank:RerankProcessor",
    checkpoint="encoder_plugins.models.modernbert_gliner_rerank.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner.reference:RECORDER",
    parity="encoder_plugins.families.gliner.parity:PARITY",
    prep_version=1,
    reference_library="gliner",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=TOKEN_LIMITS,
    parameters=PARAMETERS,
    extra=EXTRA,
    example_model="knowledgator/gliner-linker-rerank-v1.0",
    architectures={
        "ModernBertGlinerRerankModel": "encoder_plugins.models.modernbert_gliner_rerank.model:ModernBertGlinerRerankModel"
    },
)
