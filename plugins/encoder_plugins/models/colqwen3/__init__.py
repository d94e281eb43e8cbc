"""Visual retrieval by ColQwen3."""

from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.families.vision.limits import LIMITS
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="colqwen3",
    summary="Visual retrieval by ColQwen3 checkpoints on Qwen3-VL: rows of page images, texts and queries, and scores.",
    task="token_embed",
    processor="encoder_plugins.families.vision.processor:VisualProcessor",
    checkpoint="encoder_plugins.models.colqwen3.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.models.colqwen3.reference:RECORDER",
    parity="encoder_plugins.families.vision.parity:PARITY",
    prep_version=2,
    reference_library="sauerkrautlm_colpali",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS,
    example_model="VAGOsolutions/SauerkrautLM-ColQwen3-1.7b-Turbo-v0.1",
    # a name of our own: vLLM knows the published one, and leaves out the projection's bias
    architectures={"VisualColQwen3Model": "encoder_plugins.models.colqwen3.model:VisualColQwen3Model"},
)
