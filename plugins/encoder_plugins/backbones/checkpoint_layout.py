"""What a checkpoint must hold, as plain data: the name and shape of every tensor, and the parameter that each one fills.

Both follow from the configuration alone (shapes are those before any split over ranks), so prep checks a checkpoint
against the same layout that the engine loads it by. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class ByHead:
    """Several fused parts in one tensor, which has the rows of each head together: `[heads, parts, head_size, …]`, flat.

    Attributes:
        heads: Their number.
        parts: The parts of each head, in order, as the parameter's layer calls them.
    """

    heads: int
    parts: tuple[int | str, ...]


class ParameterSlot(NamedTuple):
    """The parameter that a tensor fills, or the part of one.

    Attributes:
        parameter: The parameter's name in the model.
        part: Which of the parameter's fused parts the tensor is, as the parameter's layer calls them, or has; None for all of it.
    """

    parameter: str
    part: int | str | ByHead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """The tensors of a checkpoint.

    Attributes:
        shapes: Name and shape of every tensor that must be present.
        slot: Gives the slot of a tensor by its name.
        aliases: Other names that published checkpoints use for a tensor of ``shapes``. A checkpoint may hold the same tensor
            under both names if the two are equal.
        ignored: Names that published checkpoints hold and that nothing is computed from, with the reason.
        zeros: Slots that no tensor fills and that are zero, and the shape of each.
    """

    shapes: Shapes
    slot: Callable[[str], ParameterSlot]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    zeros: Mapping[ParameterSlot, Shape] = field(default_factory=dict)

    def under(self, prefix: str, parameter_prefix: str) -> CheckpointLayout:
        """Return this layout as a part of a larger one.

        Args:
            prefix: What precedes the tensors' names in the larger checkpoint.
            parameter_prefix: What precedes the parameters' names in the larger model.
        """

        def placed(slot: ParameterSlot) -> ParameterSlot:
            return slot._replace(parameter=parameter_prefix + slot.parameter)

        return CheckpointLayout(
            shapes={prefix + name: shape for name, shape in self.shapes.items()},
            slot=lambda name: placed(self.slot(name.removeprefix(prefix))),
            aliases={prefix + alias: prefix + name for alias, name in self.aliases.items()},
            ignored={prefix + name: reason for name, reason in self.ignored.items()},
            zeros={placed(slot): shape for slot, shape in self.zeros.items()},
        )


def join(*layouts: CheckpointLayout) -> CheckpointLayout:
    """Return the layout of a checkpoint that holds the tensors of all ``layouts``, which have no name in common."""
    owner = {name: layout for layout in layouts for name in layout.shapes}
    return CheckpointLayout(
        shapes={name: shape for layout in layouts for name, shape in layout.shapes.items()},
        slot=lambda name: owner[name].slot(name),
        aliases={alias: name for layout in layouts for alias, name in layout.aliases.items()},
        ignored={name: reason for layout in layouts for name, reason in layout.ignored.items()},
        zeros={slot: shape for layout in layouts for slot, shape in layout.zeros.items()},
    )


def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> dict[str, Shape]:
    """Return the tensors of a linear layer."""
    weight: dict[str, Shape] = {f"{name}.weight": (rows, columns)}
    return {**weight, f"{name}.bias": (rows,)} if bias else weight


def norm(name: str, size: int, *, bias: bool = True) -> dict[str, Shape]:
    """Return the tensors of a norm."""
    weight: dict[str, Shape] = {f"{name}.weight": (size,)}
    return {**weight, f"{name}.bias": (size,)} if bias else weight
