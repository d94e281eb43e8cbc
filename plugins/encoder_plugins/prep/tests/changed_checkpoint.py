"""Prepare a checkpoint, or change one file of it, for tests about what prep makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from encoder_plugins import catalog
from encoder_plugins.artifact import reference as references
from encoder_plugins.prep.pipeline import Prepared, prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

WEIGHTS = "model.safetensors"
Build = Callable[..., Path]


def prepared(plugin: str, source: Path | str, output: Path, *, record: Any = None, **changes: Any) -> Prepared:
    request = Request(plugin=catalog.get(plugin), source=str(source), output=output, **changes)
    return prepare(request, silent(), record)


def nothing(*arguments: Any, **options: Any) -> references.Recording:
    """Record nothing: for tests that are about something else."""
    return references.Recording(cases=[{"id": "one"}], outputs={"one": {"logits": np.zeros(1, np.float32)}}, about={})


def silent() -> Progress:
    return Progress(lambda line: None)


def change(folder: Path, name: str = "gliner_config.json", **values: Any) -> None:
    path = folder / name
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in values.items():
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def rewrite(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)
