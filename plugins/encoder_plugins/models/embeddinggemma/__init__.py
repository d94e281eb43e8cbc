"""EmbeddingGemma checkpoints."""

from encoder_plugins.families.retrieval.limits import SCORING_LIMITS
from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.plugin import POOLING, REQUEST_LIMITS, Plugin, Route

PLUGIN = Plugin(
    name="embeddinggemma",
    summary="Text embeddings of EmbeddingGemma checkpoints: prompts by task, titles of documents, Matryoshka sizes.",
    licence_note="The Gemma Terms of Use and their prohibited use policy apply, to fine-tuned checkpoints as well.",
    task="embed",
    processor="encoder_plugins.models.embeddinggemma.processor:EmbeddingGemmaProcessor",
    checkpoint="encoder_plugins.models.embeddinggemma.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.embedding.reference:MATRYOSHKA_RECORDER",
    parity="encoder_plugins.models.embeddinggemma.parity:PARITY",
    prep_version=4,
    reference_library="sentence_transformers",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(
        POOLING,
        Route(path="/v1/embeddings", schema="openai", summary="Answer a request of OpenAI's embeddings API."),
        *ROUTES,
    ),
    limits=(*REQUEST_LIMITS, *SCORING_LIMITS),
    example_model="unsloth/embeddinggemma-300m",
    # prep writes this name into config.json, since transformers and vLLM know the published one
    architectures={"SentenceGemma3Model": "encoder_plugins.models.embeddinggemma.model:SentenceGemma3Model"},
)
