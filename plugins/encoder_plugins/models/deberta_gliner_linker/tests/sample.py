"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

from pathlib import Path

from encoder_checkpoints import gliner

DEMO = {"text": "Tim Cook leads Apple in Cupertino.", "labels": ["person", "company", "city"], "threshold": 0.3}


def build(folder: Path) -> Path:
    """Write the checkpoint as users publish it; return where it is."""
    return gliner.build(folder, "deberta_gliner_linker")
