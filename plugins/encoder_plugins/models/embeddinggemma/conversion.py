"""Write what the engine loads beside the published files: the Dense modules' tensors, and its own architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.embedding.format import CONFIG
from encoder_plugins.families.retrieval.dense import WEIGHTS
from encoder_plugins.models.embeddinggemma.layout import DENSE, encoder_layout
from encoder_plugins.prep.checkpoint_files import INDEX
from encoder_plugins.prep.checkpoint_json import shown
from encoder_plugins.prep.tensor_file import read_header

# vLLM loads every file of safetensors in the folder
DENSE_FILE = "dense.safetensors"


def write_dense(folder: Path, target: Path, paths: Sequence[str], served: Mapping[str, Any]) -> None:
    """Add the Dense modules' tensors to a model folder, and replace its configuration.

    Args:
        folder: The published checkpoint.
        target: The model folder, which holds links to the published files.
        paths: The folders of the Dense modules, in order.
        served: The content of the engine's config.json.

    Raises:
        Unsupported: A tensor of the encoder is missing, unknown, or has another shape than the configuration requires.
        SourceFileNotFound: There are no weights.
    """
    _check_encoder(folder, served)
    tensors = {
        f"{DENSE}{number}.{name}": tensor.contiguous()
        for number, path in enumerate(paths)
        for name, tensor in load_file(folder / path / WEIGHTS).items()
    }
    if tensors:
        save_file(tensors, target / DENSE_FILE, metadata={"format": "pt"})
        # safetensors writes for its own user alone, and the engine may be another
        (target / DENSE_FILE).chmod(0o644)
    # with an index, vLLM would load the files that it lists only
    (target / INDEX).unlink(missing_ok=True)
    # a link: the published file must stay as it is
    (target / CONFIG).unlink()
    (target / CONFIG).write_text(json.dumps(served, indent=2, sort_keys=True), encoding="utf-8")


def _check_encoder(folder: Path, config: Mapping[str, Any]) -> None:
    layout = encoder_layout(config)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise SourceFileNotFound(f"{WEIGHTS} is missing: it has the encoder's weights")
    found = {name: shape for file in files for name, shape in read_header(folder, file).shapes.items()}
    shapes = {layout.aliases.get(name, name): shape for name, shape in found.items()}
    for name, expected in layout.shapes.items():
        if shapes.get(name) != tuple(expected):
            has = shown(shapes[name]) if name in shapes else "missing"
            raise Unsupported(f"{files[0]}: {name} is {has}, and the configuration requires {shown(expected)}")
    if unknown := sorted(set(shapes) - set(layout.shapes)):
        raise Unsupported(f"{files[0]}: holds {unknown[0]}, which the configuration does not have")
