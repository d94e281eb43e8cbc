"""ColBERT retrieval on BERT and XLM-RoBERTa."""

from encoder_plugins.families.retrieval.limits import LIMITS
from encoder_plugins.families.retrieval.routes import ROUTES
from encoder_plugins.plugin import POOLING, Plugin

PLUGIN = Plugin(
    name="colbert",
    summary="Late-interaction retrieval by ColBERT checkpoints on BERT and XLM-RoBERTa, in Stanford's, PyLate's or sentence-transformers' format: rows of queries and documents, and scores.",
    task="token_embed",
    processor="encoder_plugins.families.retrieval.processor:MultiVectorProcessor",
    checkpoint="encoder_plugins.models.colbert.checkpoint:CHECKPOINT",
    recorder="encoder_plugins.families.retrieval.reference:RECORDER",
    parity="encoder_plugins.families.retrieval.parity:PARITY",
    prep_version=4,
    reference_library="sentence_transformers",
    dtypes=(("cpu", "float32"), ("nvidia", "bfloat16")),
    routes=(POOLING, *ROUTES),
    limits=LIMITS,
    example_model="colbert-ir/colbertv2.0",
    # a name of our own: vLLM knows HF_ColBERT, and encodes queries and documents alike
    architectures={"BertColbertModel": "encoder_plugins.models.colbert.model:BertColbertModel"},
)
