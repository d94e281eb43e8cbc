"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_plugins.models.colbert.tests import tiny

DEMO = {
    "query": "Which animal runs fast?",
    "documents": ["A man is eating.", "A cheetah chases its prey.", "Bread is baked from flour."],
    "top_k": 2,
}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it; return where it is."""
    return tiny.build("stanford", folder)
