"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_checkpoints import gliner2

DEMO = {
    "text": "Tim Cook leads Apple in Cupertino.",
    "entities": ["person", "company", "city"],
    "classifications": {"topic": ["business", "sports"]},
    "threshold": 0.3,
}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it; return where it is."""
    return gliner2.build(folder)
