"""Strict loading: every tensor of a checkpoint has one place, every place gets its tensor once, or nothing is served.

What a checkpoint must hold follows from its configuration (names and shapes, before any split over ranks), and where a
tensor goes is a function of its name alone: both are plain data, and tested without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

# an error names so many tensors of a kind, and counts the rest: a wrong prefix makes all of them wrong
NAMED = 8


class Place(NamedTuple):
    """Where a tensor goes.

    Attributes:
        parameter: The parameter's name in the model.
        part: Which of the parameter's fused parts it is, as its layer calls them; None for all of it.
    """

    parameter: str
    part: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a checkpoint holds.

    Attributes:
        shapes: Name and shape of every tensor that must be there.
        place: From a tensor's name to its place.
        aliases: Other names that published checkpoints use for a tensor of ``shapes``; the same tensor may come under both, if they are equal.
        ignored: Names that published checkpoints carry and that nothing is computed from, with the reason.
    """

    shapes: Shapes
    place: Callable[[str], Place]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def under(self, prefix: str, parameter_prefix: str) -> Layout:
        """Return this layout as part of a bigger one: below ``prefix`` in a checkpoint, and ``parameter_prefix`` in a model."""

        def place(name: str) -> Place:
            parameter, part = self.place(name.removeprefix(prefix))
            return Place(parameter_prefix + parameter, part)

        return Layout(
            shapes={prefix + name: shape for name, shape in self.shapes.items()},
            place=place,
            aliases={prefix + alias: prefix + name for alias, name in self.aliases.items()},
            ignored={prefix + name: reason for name, reason in self.ignored.items()},
        )


def join(*layouts: Layout) -> Layout:
    """Return the layout of a checkpoint that holds all of ``layouts``, which share no name."""
    owner = {name: layout for layout in layouts for name in layout.shapes}
    return Layout(
        shapes={name: shape for layout in layouts for name, shape in layout.shapes.items()},
        place=lambda name: owner[name].place(name),
        aliases={alias: name for layout in layouts for alias, name in layout.aliases.items()},
        ignored={name: reason for layout in layouts for name, reason in layout.ignored.items()},
    )


class WeightsError(ValueError):
    """A checkpoint's tensors are not those that its configuration asks for."""


def load(model: nn.Module, weights: Iterable[tuple[str, Tensor]], layout: Layout) -> set[str]:
    """Copy ``weights`` to their places in ``model``.

    Returns:
        The names of the parameters that were loaded.

    Raises:
        WeightsError: Tensors are missing, surplus, mis-shaped, or there twice; all of them are named.
    """
    parameters = dict(model.named_parameters())
    loaded: set[str] = set()
    # the name under which each expected tensor came, and the tensor where it has a second name
    arrived: dict[str, str] = {}
    tied: dict[str, Tensor] = {}
    surplus: list[str] = []
    twice: list[str] = []
    misshaped: list[str] = []
    for given, tensor in weights:
        if given in layout.ignored:
            continue
        name = layout.aliases.get(given, given)
        expected = layout.shapes.get(name)
        if expected is None:
            surplus.append(given)
        elif name in arrived:
            if arrived[name] == given or name not in tied or not torch.equal(tied[name], tensor):
                twice.append(given)
        else:
            arrived[name] = given
            if name in layout.aliases.values():
                tied[name] = tensor
            if tuple(tensor.shape) != tuple(expected):
                misshaped.append(f"{given} {list(tensor.shape)} instead of {list(expected)}")
                continue
            place = layout.place(name)
            _copy(parameters[place.parameter], tensor, place.part)
            loaded.add(place.parameter)
    missing = [name for name in layout.shapes if name not in arrived]
    report(missing=missing, surplus=surplus, twice=twice, misshaped=misshaped)
    return loaded


def report(*, missing: list[str], surplus: list[str], twice: list[str], misshaped: list[str]) -> None:
    """Raise WeightsError unless all lists are empty."""
    found = {"missing": missing, "unexpected": surplus, "there twice": twice, "of another shape": misshaped}
    if not any(found.values()):
        return
    lines = []
    for what, names in found.items():
        if names:
            more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(f"{len(names)} {what}: {', '.join(names[:NAMED])}{more}")
    raise WeightsError("the checkpoint's tensors do not fit its configuration; " + "; ".join(lines))


def _copy(parameter: nn.Parameter, tensor: Tensor, part: int | str | None) -> None:
    loader = getattr(parameter, "weight_loader", default_weight_loader)
    if part is None:
        loader(parameter, tensor)
    else:
        loader(parameter, tensor, part)
