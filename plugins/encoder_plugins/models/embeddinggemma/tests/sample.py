"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_plugins.models.embeddinggemma.tests import tiny

DEMO = {
    "texts": ["Mars is the fourth planet from the Sun.", "Bread is made of flour and water."],
    "titles": ["Mars", None],
    "input_type": "document",
    "dimensions": 128,
}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it; return where it is."""
    return tiny.build(folder)
