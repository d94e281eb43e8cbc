"""Write the encoder of a checkpoint with a head for masked words, as ``AutoModel`` of transformers loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from encoder_plugins.errors import Unsupported

WEIGHTS = "model.safetensors"


def write_encoder(folder: Path, target: Path, config: Mapping[str, Any], architecture: str, prefix: str) -> None:
    """Replace config.json and the weights in ``target``, which holds links to the published files.

    Args:
        folder: The published checkpoint.
        target: The model folder.
        config: The content of its config.json.
        architecture: The encoder's own architecture.
        prefix: What the names of the encoder's tensors begin with.

    Raises:
        Unsupported: The weights are in several files, or none of them has the prefix.
    """
    if not (folder / WEIGHTS).is_file():
        raise Unsupported(f"{WEIGHTS} is missing: a checkpoint with a head for masked words must not be sharded")
    tensors = load_file(folder / WEIGHTS)
    encoder = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    if not encoder:
        raise Unsupported(f"{WEIGHTS}: no tensor is called {prefix}…, as {config['architectures'][0]} has them")
    for name in ("config.json", WEIGHTS):
        # a link: the published file must stay as it is
        (target / name).unlink()
    save_file(encoder, target / WEIGHTS, metadata={"format": "pt"})
    (target / WEIGHTS).chmod(0o644)
    served = {**config, "architectures": [architecture]}
    (target / "config.json").write_text(json.dumps(served, indent=2, sort_keys=True), encoding="utf-8")
