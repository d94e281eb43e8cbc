"""A small checkpoint of this family, and a request to try it with: what every matrix of tests takes it from."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

DEMO = {"texts": ["A man is eating.", "Someone has a meal.", "A cheetah chases its prey."]}


def build(folder: Path) -> Path:
    """Write the checkpoint as people publish it; return where it is."""
    tiny = _tiny()
    saved: Path = tiny.build(tiny.TINY[0], folder)
    return saved


def _tiny() -> Any:
    """Import the builder beside this file; tests are no package."""
    name = "sentence_transformer_tiny"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("tiny.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
