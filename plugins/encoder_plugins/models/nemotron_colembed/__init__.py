"""Visual retrieval by Nemotron ColEmbed."""

from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.families.vision.limits import LIMITS
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="nemotron_colembed",
    summary="Visual retrieval by Nemotron ColEmbed checkpoints on Qwen3-VL: wide rows of page images with or without text, texts and"
    " queries, and scores.",
    licence_note="nvidia/nemotron-colembed-vl-4b-v2 is CC-BY-NC-4.0: no commercial use.",
    task="token_embed",
    processor="encoder_plugins.families.vision.processor:VisualProcessor",
    checkpoint="encoder_plugins.models.nemotron_colembed.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.models.nemotron_colembed.reference:RECORDER",
    parity="encoder_plugins.models.nemotron_colembed.parity:PARITY",
    prep_version=2,
    reference_library="sauerkrautlm_colpali",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS,
    example_model="nvidia/nemotron-colembed-vl-4b-v2",
    # a name of our own: vLLM knows the published one, makes it causal, and applies the last norm
    architectures={"VisualNemotronModel": "encoder_plugins.models.nemotron_colembed.model:VisualNemotronModel"},
)
