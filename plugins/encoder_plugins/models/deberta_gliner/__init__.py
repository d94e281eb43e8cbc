"""GLiNER on DeBERTa v2 and v3."""

from encoder_plugins.families.gliner.limits import LIMITS
from encoder_plugins.families.gliner.parameters import EXTRA, PARAMETERS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="deberta_gliner",
    summary="Zero-shot entity recognition by GLiNER checkpoints on DeBERTa-v3: gliner_small, medium, large, multi and multitask.",
    # candidates, a row each: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner.processor:GlinerProcessor",
    checkpoint="encoder_plugins.models.deberta_gliner.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner.reference:RECORDER",
    parity="encoder_plugins.families.gliner.parity:PARITY",
    prep_version=2,
    reference_library="gliner",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=LIMITS,
    # of the library's model, and of its encoder alone
    adapted=("token_rep_layer.bert_layer.model.encoder.layer.", "encoder.layer."),
    parameters=PARAMETERS,
    extra=EXTRA,
    example_model="urchade/gliner_small-v2.1",
    architectures={"DebertaGlinerModel": "encoder_plugins.models.deberta_gliner.model:DebertaGlinerModel"},
)
