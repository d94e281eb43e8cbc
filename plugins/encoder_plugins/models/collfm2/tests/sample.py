"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_plugins.families.vision.cases import picture
from encoder_plugins.models.collfm2.tests import tiny

DEMO = {
    "query": "Which page has a table of prices?",
    "documents": ["A man is eating.", {"image": picture(200, 280, 1)}, {"image": picture(280, 200, 2)}],
    "top_k": 2,
}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it, with the configuration of its base; return where it is."""
    return tiny.build(folder)[0]
