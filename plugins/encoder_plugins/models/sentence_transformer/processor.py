"""The requests of this plugin."""

from encoder_plugins.families.embedding.processor import EmbeddingProcessor
from encoder_plugins.models.sentence_transformer.checkpoint import CHECKPOINT


class SentenceTransformerProcessor(EmbeddingProcessor):
    """See ``EmbeddingProcessor``."""

    checkpoint = CHECKPOINT
