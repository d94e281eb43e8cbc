"""The recorder of this plugin: the family's, with vectors that are cut normalised again, as the model's card says."""

from encoder_plugins.families.embedding.reference import EmbeddingRecorder

RECORDER = EmbeddingRecorder(renormalize=True)
