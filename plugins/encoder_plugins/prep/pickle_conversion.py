"""Turns pickled weights into safetensors, where the user allowed pickle: tensors only, never code.

Imports torch; prep calls it only for a checkpoint that needs it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from encoder_plugins.errors import PickleRefused


def convert(source: Path, target: Path) -> list[str]:
    """Write the tensors of a pickle file as safetensors, and return their names.

    Raises:
        PickleRefused: The file holds anything but named tensors.
        OSError: The volume is full.
    """
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # bytes that are no pickle may fail in any instruction
        raise PickleRefused(f"{source.name} holds more than tensors, or is damaged: {repr(error)[:200]}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise PickleRefused(f"{source.name} is not a table of tensors by name")
    # clones, because safetensors refuses two names for one storage
    tensors = {str(name): value.detach().clone().contiguous() for name, value in loaded.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(tensors, target, metadata={"format": "pt"})
    except SafetensorError as error:
        # safetensors wraps the system's error in its text
        if any(f"os error {number}" in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
            raise OSError(errno.ENOSPC, str(error)) from error
        raise
    # safetensors writes for its own user alone, and the engine may be another
    target.chmod(0o644)
    return list(tensors)


def convert_folder(pickles: Mapping[Path, Path]) -> None:
    """Convert one folder's weights, with the index that loaders want of more than one file.

    Args:
        pickles: The safetensors file to write, by the pickle file to read.
    """
    shards = {target: convert(source, target) for source, target in pickles.items()}
    if len(shards) < 2:
        return
    weight_map = {name: target.name for target, names in shards.items() for name in names}
    size = sum(target.stat().st_size for target in shards)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    first = next(iter(shards))
    first.with_name("model.safetensors.index.json").write_text(json.dumps(index, indent=2))
