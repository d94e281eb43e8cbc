"""Checkpoints in sentence-transformers format, on encoders of vLLM's or of ours."""

from encoder_plugins.families.retrieval.limits import SCORING_LIMITS
from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.plugin import POOLING, REQUEST_LIMITS, Plugin, Route

PLUGIN = Plugin(
    name="sentence_transformer",
    summary="Text embeddings of any sentence-transformers checkpoint on an encoder that this package or vLLM has: MiniLM, MPNet, E5, BGE, GTE, and others.",
    task="embed",
    processor="encoder_plugins.models.sentence_transformer.processor:SentenceTransformerProcessor",
    checkpoint="encoder_plugins.models.sentence_transformer.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.embedding.reference:RECORDER",
    parity="encoder_plugins.models.sentence_transformer.parity:PARITY",
    prep_version=6,
    reference_library="sentence_transformers",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(
        POOLING,
        Route(path="/v1/embeddings", schema="openai", summary="Answer a request of OpenAI's embeddings API."),
        *ROUTES,
    ),
    limits=(*REQUEST_LIMITS, *SCORING_LIMITS),
    example_model="sentence-transformers/all-MiniLM-L6-v2",
    # prep writes these names into config.json, since transformers and vLLM know the published ones otherwise
    architectures={
        name: f"encoder_plugins.models.sentence_transformer.model:{name}"
        for name in (
            "SentenceBertModel",
            "SentenceDistilBertModel",
            "SentenceMPNetModel",
            "SentenceModernBertModel",
        )
    },
)
