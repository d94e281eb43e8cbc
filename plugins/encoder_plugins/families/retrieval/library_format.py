"""Which library a published checkpoint of one vector per token is of. Standard library only: recorders read it, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.prep.checkpoint_json import read_object, shown

LIBRARY = "config_sentence_transformers.json"
# what PyLate 1.6 takes where its file leaves something open; sentence-transformers 6.2 takes no prefix, and no length without expansion
PYLATE_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 180}
)


def read_library(folder: Path) -> dict[str, Any]:
    """Return what the library's file says, with PyLate's own defaults in a checkpoint of PyLate's; raises Unsupported as ``is_pylate``."""
    library = read_object(folder, LIBRARY)
    if not is_pylate(library):
        return library
    # PyLate knows no ``query_expansion``, which has a length of its own
    defaults = {
        name: value
        for name, value in PYLATE_DEFAULTS.items()
        if library.get(name) is None and not (name == "query_length" and "query_expansion" in library)
    }
    return {**library, **defaults}


def strips(folder: Path) -> bool:
    """Return whether white space around a text is no part of it to the library that a published checkpoint is of."""
    return (folder / LIBRARY).is_file() and is_pylate(read_object(folder, LIBRARY))


def whole_text(folder: Path, text: str, kind: str, prompt_name: str | None) -> str | None:
    """Return a text with its prompt and the prefix of its kind as PyLate has them; None for a checkpoint of another library.

    PyLate leaves out the white space around prompt and text together, and its prefix is there whichever prompt is named. sentence-transformers 6.2
    reads PyLate's checkpoints, keeps the white space, and takes the prefix for a part of the prompts ``query`` and ``document``.
    """
    if not strips(folder):
        return None
    library = read_library(folder)
    name = prompt_name or kind
    # the prompt of a kind may have its prefix already, once; in any other one it is a part of the text
    prompt = ((library.get("prompts") or {}).get(name) or "").removeprefix(library.get(f"{name}_prefix") or "")
    return f"{library.get(f'{kind}_prefix') or ''}{(prompt + text).strip()}"


def is_pylate(library: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is in PyLate's format; raises Unsupported for one of neither format."""
    # earlier versions of the library did not write the field; null is none of its kinds, and it draws a projection
    kind = library.get("model_type", "SentenceTransformer")
    if kind == "MultiVectorEncoder":
        return False
    if kind == "ColBERT" or (kind == "SentenceTransformer" and {"query_prefix", "document_prefix"} & library.keys()):
        return True
    raise Unsupported(
        f"{LIBRARY}: model_type is {shown(kind)}: not a checkpoint of one vector per token, which has MultiVectorEncoder or"
        " ColBERT there; the plugin sentence_transformer serves text embeddings"
    )
