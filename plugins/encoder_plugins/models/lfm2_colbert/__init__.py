"""ColBERT retrieval on LFM2."""

from encoder_plugins.families.retrieval.limits import LIMITS
from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="lfm2_colbert",
    summary="Late-interaction retrieval by ColBERT checkpoints on LFM2, in PyLate's or sentence-transformers' format: rows of queries and documents, and scores.",
    licence_note="LFM2-ColBERT-350M has the LFM Open License 1.0, which limits commercial use by a company's revenue.",
    task="token_embed",
    processor="encoder_plugins.families.retrieval.processor:MultiVectorProcessor",
    checkpoint="encoder_plugins.models.lfm2_colbert.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.retrieval.reference:RECORDER",
    parity="encoder_plugins.models.lfm2_colbert.parity:PARITY",
    prep_version=4,
    reference_library="sentence_transformers",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS,
    example_model="LiquidAI/LFM2-ColBERT-350M",
    # a name of our own: vLLM and transformers know the encoder's
    architectures={"Lfm2ColbertModel": "encoder_plugins.models.lfm2_colbert.model:Lfm2ColbertModel"},
)
