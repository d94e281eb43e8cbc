"""Deliberate mistakes in what conversion writes: changes of a model folder that each must end in a refusal or in Failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Change = Callable[[Path], None]
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        name: What is wrong.
        change: Makes the mistake in a model folder.
        dtypes: In which the mistake is larger than rounding.
    """

    name: str
    change: Change
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def weights(edit: Callable[[Tensors], Any], file: str = WEIGHTS) -> Change:
    """Return a change of the weights in ``file``."""

    def apply(folder: Path) -> None:
        path = folder / file
        tensors = load_file(path)
        edit(tensors)
        # a link to the published file would change that, too
        path.unlink()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})

    return apply


def swapped(one: str, other: str, file: str = WEIGHTS) -> Change:
    def edit(tensors: Tensors) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return weights(edit, file)


def without(name: str, file: str = WEIGHTS) -> Change:
    return weights(lambda tensors: tensors.pop(name), file)


def filled(name: str, value: float, file: str = WEIGHTS) -> Change:
    return weights(lambda tensors: tensors[name].fill_(value), file)


def halves_swapped(name: str, dimension: int) -> Change:
    def edit(tensors: Tensors) -> None:
        first, second = tensors[name].chunk(2, dimension)
        tensors[name] = torch.cat([second, first], dimension)

    return weights(edit)


def thirds_swapped(name: str) -> Change:
    """Queries and keys exchanged in a fused matrix."""

    def edit(tensors: Tensors) -> None:
        query, key, value = tensors[name].chunk(3)
        tensors[name] = torch.cat([key, query, value])

    return weights(edit)


def transposed(name: str) -> Change:
    return weights(lambda tensors: tensors.update({name: tensors[name].T.clone()}))


def row_lost(name: str, row: int) -> Change:
    """Every row behind ``row`` stands one too early."""

    def edit(tensors: Tensors) -> None:
        tensors[name] = torch.cat([tensors[name][:row], tensors[name][row + 1 :], tensors[name][-1:]])

    return weights(edit)


def config(**fields: Any) -> Change:
    """Return a change of fields in config.json."""
    return json_file("config.json", lambda whole: whole.update(fields))


def section(key: str, **changes: Callable[[Any], Any]) -> Change:
    """Return a change of fields of the plugin's own part of config.json."""

    def edit(whole: dict[str, Any]) -> None:
        whole[key] |= {name: change(whole[key][name]) for name, change in changes.items()}

    return json_file("config.json", edit)


def tokenizer(edit: Callable[[dict[str, Any]], Any], file: str = "tokenizer.json") -> Change:
    """Return a change of a tokenizer."""
    return json_file(file, edit)


def json_file(name: str, edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Return a change of a file that holds a JSON object."""

    def apply(folder: Path) -> None:
        path = folder / name
        whole = json.loads(path.read_text(encoding="utf-8"))
        edit(whole)
        path.write_text(json.dumps(whole), encoding="utf-8")

    return apply


def lower_cased(whole: dict[str, Any]) -> None:
    before = whole["normalizer"]
    whole["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *([before] if before else [])]}
