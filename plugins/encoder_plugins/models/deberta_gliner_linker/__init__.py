"""GLiNER bi-encoders: labels have an encoder of their own."""

from encoder_plugins.families.gliner.limits import LINKING_LIMITS
from encoder_plugins.families.gliner.parameters import WHITESPACE_PARAMETERS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="deberta_gliner_linker",
    summary="Zero-shot entity recognition and linking to many candidates by GLiNER bi-encoders on DeBERTa and ModernBERT.",
    # scored words, a row each: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner.linking:LinkingProcessor",
    checkpoint="encoder_plugins.models.deberta_gliner_linker.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner.reference:RECORDER",
    parity="encoder_plugins.families.gliner.parity:PARITY",
    prep_version=1,
    reference_library="gliner",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=LINKING_LIMITS,
    parameters=WHITESPACE_PARAMETERS,
    label_sets=True,
    example_model="knowledgator/gliner-linker-large-v1.0",
    architectures={
        "DebertaGlinerLinkerModel": "encoder_plugins.models.deberta_gliner_linker.model:DebertaGlinerLinkerModel",
        "ModernBertGlinerBiModel": "encoder_plugins.models.deberta_gliner_linker.model:ModernBertGlinerBiModel",
        "DebertaV2GlinerBiModel": "encoder_plugins.models.deberta_gliner_linker.model:DebertaV2GlinerBiModel",
    },
)
