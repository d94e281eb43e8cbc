"""Write the encoder of a checkpoint as ``AutoModel`` of transformers loads it: without prefix, and without a head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.format import CONFIG
from encoder_plugins.models.sentence_transformer.encoders import Encoder

WEIGHTS = "model.safetensors"


def write_encoder(folder: Path, target: Path, config: Mapping[str, Any], encoder: Encoder) -> None:
    """Replace config.json and the weights in ``target``, which holds links to the published files.

    Args:
        folder: The published checkpoint.
        target: The model folder.
        config: The content of its config.json.
        encoder: How its architecture is served.

    Raises:
        Unsupported: The weights are in several files, or a tensor is missing or has another shape.
    """
    if not (folder / WEIGHTS).is_file():
        raise Unsupported(f"{WEIGHTS} is missing: a checkpoint of this architecture must not be sharded")
    tensors = without_prefix(load_file(folder / WEIGHTS), encoder.prefix)
    if encoder.layout is not None:
        layout = encoder.layout(config)
        for name, shape in layout.shapes.items():
            found = tuple(tensors[name].shape) if name in tensors else None
            if found != tuple(shape):
                raise Unsupported(f"{WEIGHTS}: {name} is {found or 'missing'}, and the configuration requires {shape}")
        tensors = {name: tensors[name] for name in layout.shapes}
    for name in (CONFIG, WEIGHTS):
        # a link: the published file must stay as it is
        (target / name).unlink()
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, target / WEIGHTS, metadata={"format": "pt"}
    )
    # safetensors writes for its own user alone, and the engine may be another
    (target / WEIGHTS).chmod(0o644)
    served = {**config, "architectures": [encoder.architecture]}
    (target / CONFIG).write_text(json.dumps(served, indent=2, sort_keys=True), encoding="utf-8")


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the encoder's tensors: those below ``prefix`` where there are any, since some are published without it."""
    below = {name.removeprefix(prefix): value for name, value in tensors.items() if prefix and name.startswith(prefix)}
    return below or dict(tensors)
