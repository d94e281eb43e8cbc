"""GLiNER2 on DeBERTa v2 and v3."""

from encoder_plugins.families.gliner2.limits import LIMITS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="deberta_gliner2",
    summary="Entities, relations, records and classes from one schema, by GLiNER2 checkpoints on DeBERTa-v3.",
    # a table for each text: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner2.processor:Gliner2Processor",
    checkpoint="encoder_plugins.models.deberta_gliner2.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner2.reference:RECORDER",
    parity="encoder_plugins.families.gliner2.parity:PARITY",
    prep_version=1,
    reference_library="gliner2",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=LIMITS,
    # of the library's model, and of its encoder alone
    adapted=("encoder.encoder.layer.", "encoder.layer."),
    example_model="fastino/gliner2-base-v1",
    architectures={"DebertaGliner2Model": "encoder_plugins.models.deberta_gliner2.model:DebertaGliner2Model"},
)
