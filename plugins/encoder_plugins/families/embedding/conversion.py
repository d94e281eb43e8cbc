"""Write what an engine loads that runs an encoder of ours: the encoder's tensors under its own names, and the Dense modules'."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.embedding.format import CONFIG
from encoder_plugins.families.embedding.served import DENSE
from encoder_plugins.families.retrieval.conversion import load_tokenizer, published_name
from encoder_plugins.families.retrieval.dense import WEIGHTS
from encoder_plugins.families.retrieval.token_types import check_token_types
from encoder_plugins.prep.checkpoint_files import INDEX
from encoder_plugins.prep.checkpoint_json import shown
from encoder_plugins.prep.tensor_file import FLOATS, read_header

# vLLM loads every file of safetensors in the folder
DENSE_FILE = "dense.safetensors"


def write_model(
    folder: Path,
    target: Path,
    *,
    layout: CheckpointLayout,
    prefix: str,
    dense: Sequence[str],
    served: Mapping[str, Any],
) -> None:
    """Replace weights and config.json in a model folder, which holds links to the published files.

    A file that has nothing but the encoder's tensors stays a link.

    Args:
        folder: The published checkpoint, its weights as safetensors.
        target: The model folder.
        layout: The encoder's tensors.
        prefix: What may precede their names, beside a head that the library leaves out; empty for nothing.
        dense: The folders of the Dense modules, in order.
        served: The content of the engine's config.json.

    Raises:
        Unsupported: A tensor is missing, has another shape or is not of floats.
        SourceFileNotFound: There are no weights.
    """
    for file, names in _encoder_files(folder, layout, prefix).items():
        if names is None:
            continue
        (target / file).unlink()
        if names:
            stored = load_file(folder / file)
            _save({name: stored[published] for name, published in names.items()}, target / file)
    tensors = {
        f"{DENSE}{number}.{name}": tensor
        for number, path in enumerate(dense)
        for name, tensor in load_file(folder / path / WEIGHTS).items()
    }
    if tensors:
        _save(tensors, target / DENSE_FILE)
    # with an index, vLLM would load the files that it lists only
    (target / INDEX).unlink(missing_ok=True)
    # a link: the published file must stay as it is
    (target / CONFIG).unlink()
    (target / CONFIG).write_text(json.dumps(served, indent=2, sort_keys=True), encoding="utf-8")


def check_tokenizer(folder: Path, types: int) -> None:
    """Refuse a tokenizer that gives tokens another type than 0, where the encoder has ``types`` of them.

    Raises:
        Unsupported: It does, or cannot be loaded, or is not a fast one.
    """
    if types:
        check_token_types(load_tokenizer(folder), types)


def _encoder_files(folder: Path, layout: CheckpointLayout, prefix: str) -> dict[str, dict[str, str] | None]:
    """Return the encoder's tensors in each file, and their published names; None for a file that holds nothing else."""
    headers = {path.name: read_header(folder, path.name) for path in sorted(folder.glob("*.safetensors"))}
    if not headers:
        raise SourceFileNotFound(f"{WEIGHTS} is missing: it has the encoder's weights")
    shapes = {name: shape for header in headers.values() for name, shape in header.shapes.items()}
    dtypes = {name: dtype for header in headers.values() for name, dtype in header.dtypes.items()}
    # some are published without the prefix
    below = prefix if prefix and any(name.startswith(prefix) for name in shapes) else ""
    aliases = {served: alias for alias, served in layout.aliases.items() if alias in shapes}
    first = next(iter(headers))
    published: dict[str, str] = {}
    for name, expected in layout.shapes.items():
        given = aliases.get(name) or published_name(below + name, shapes)
        if shapes.get(given) != tuple(expected):
            found = shown(shapes[given]) if given in shapes else "missing"
            raise Unsupported(f"{first}: {given} is {found}, and the configuration requires {shown(expected)}")
        if dtypes[given] not in FLOATS:
            raise Unsupported(f"{first}: {given} is {dtypes[given]}; supported: {', '.join(sorted(FLOATS))}")
        published[name] = given
    loadable = {*layout.shapes, *aliases.values(), *layout.ignored}
    return {
        file: None
        if header.shapes.keys() <= loadable
        else {name: given for name, given in published.items() if given in header.shapes}
        for file, header in headers.items()
    }


def _save(named: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: value.contiguous() for name, value in named.items()}, path, metadata={"format": "pt"})
    # safetensors writes for its own user alone, and the engine may be another
    path.chmod(0o644)
