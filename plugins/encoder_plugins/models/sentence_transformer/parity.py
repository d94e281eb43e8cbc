"""The cases and tolerances of this plugin."""

from encoder_plugins.families.embedding.parity import EmbeddingParity
from encoder_plugins.models.sentence_transformer.checkpoint import CHECKPOINT

PARITY = EmbeddingParity(CHECKPOINT)
