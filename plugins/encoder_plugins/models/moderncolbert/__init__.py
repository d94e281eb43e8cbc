"""ColBERT retrieval on ModernBERT."""

from encoder_plugins.families.retrieval.limits import LIMITS
from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="moderncolbert",
    summary="Late-interaction retrieval by ColBERT checkpoints on ModernBERT, in PyLate's, sentence-transformers' or Stanford's format: rows of queries and documents, and scores.",
    task="token_embed",
    processor="encoder_plugins.families.retrieval.processor:MultiVectorProcessor",
    checkpoint="encoder_plugins.models.moderncolbert.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.retrieval.reference:RECORDER",
    parity="encoder_plugins.families.retrieval.parity:PARITY",
    prep_version=5,
    reference_library="sentence_transformers",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS,
    example_model="lightonai/GTE-ModernColBERT-v1",
    # a name of our own: vLLM and transformers know the encoder's
    architectures={"ModernColbertModel": "encoder_plugins.models.moderncolbert.model:ModernColbertModel"},
)
