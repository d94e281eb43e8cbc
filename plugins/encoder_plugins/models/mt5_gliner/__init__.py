"""GLiNER on the encoder of mT5."""

from encoder_plugins.families.gliner.limits import LIMITS
from encoder_plugins.families.gliner.parameters import EXTRA, PARAMETERS
from encoder_plugins.plugin import Plugin

PLUGIN = Plugin(
    name="mt5_gliner",
    summary="Zero-shot entity recognition by GLiNER checkpoints on the encoder of mT5, for a hundred languages.",
    # candidates, a row each: vLLM's GPU runner knows no task of ours
    task="token_classify",
    processor="encoder_plugins.families.gliner.processor:GlinerProcessor",
    checkpoint="encoder_plugins.models.mt5_gliner.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.gliner.reference:RECORDER",
    parity="encoder_plugins.families.gliner.parity:PARITY",
    prep_version=2,
    reference_library="gliner",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    limits=LIMITS,
    parameters=PARAMETERS,
    extra=EXTRA,
    example_model="knowledgator/gliner-x-large",
    architectures={"Mt5GlinerModel": "encoder_plugins.models.mt5_gliner.model:Mt5GlinerModel"},
)
