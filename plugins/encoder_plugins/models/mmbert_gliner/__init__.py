"""GLiNER on ModernBERT and mmBERT."""

from encoder_plugins.families.gliner.limits import LIMITS
from encoder_plugins.families.gliner.parameters import EXTRA, PARAMETERS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="mmbert_gliner",
    summary="Zero-shot entity recognition by GLiNER checkpoints on ModernBERT and mmBERT.",
    # candidates, a row each: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner.processor:GlinerProcessor",
    checkpoint="encoder_plugins.models.mmbert_gliner.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner.reference:RECORDER",
    parity="encoder_plugins.families.gliner.parity:PARITY",
    prep_version=2,
    reference_library="gliner",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=LIMITS,
    parameters=PARAMETERS,
    extra=EXTRA,
    example_model="VAGOsolutions/SauerkrautLM-GLiNER",
    architectures={"MmbertGlinerModel": "encoder_plugins.models.mmbert_gliner.model:MmbertGlinerModel"},
)
