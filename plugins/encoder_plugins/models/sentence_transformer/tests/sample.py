"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_plugins.models.sentence_transformer.tests import tiny

DEMO = {"texts": ["A man is eating.", "Someone has a meal.", "A cheetah chases its prey."]}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it; return where it is."""
    return tiny.build("bert", folder)
