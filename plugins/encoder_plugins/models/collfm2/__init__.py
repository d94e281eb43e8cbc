"""Visual retrieval by ColLFM2."""

from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.families.vision.limits import LIMITS_OF_TILES
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="collfm2",
    summary="Visual retrieval by ColLFM2 checkpoints on LFM2-VL: rows of page images, texts and queries, and scores.",
    licence_note="SauerkrautLM-ColLFM2's page says Apache-2.0, and its metadata the LFM Open License 1.0 of its base, which limits commercial use by a company's revenue.",
    task="token_embed",
    processor="encoder_plugins.families.vision.processor:VisualProcessor",
    checkpoint="encoder_plugins.models.collfm2.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.models.collfm2.reference:RECORDER",
    parity="encoder_plugins.models.collfm2.parity:PARITY",
    prep_version=1,
    reference_library="sauerkrautlm_colpali",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS_OF_TILES,
    example_model="VAGOsolutions/SauerkrautLM-ColLFM2-450M-v0.1",
    # a name of our own: vLLM knows the base's
    architectures={"VisualColLfm2Model": "encoder_plugins.models.collfm2.model:VisualColLfm2Model"},
)
