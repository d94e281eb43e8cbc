"""Strict loading: every tensor of a checkpoint fills one slot of the model, and every slot is filled once, or loading fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from encoder_plugins.backbones.checkpoint_layout import ByHead, CheckpointLayout, ParameterSlot

# an error lists this many tensors of a kind and counts the rest: a wrong prefix makes all of them wrong
NAMED = 8
# tensors beside a weight in 8 bits, as vLLM's quantisation methods name them
SCALES = ("weight_scale", "weight_scale_inv", "input_scale")


class WeightsError(ValueError):
    """A checkpoint's tensors are not those that its configuration requires."""


def load(model: nn.Module, weights: Iterable[tuple[str, Tensor]], layout: CheckpointLayout) -> set[str]:
    """Copy ``weights`` into their slots in ``model``.

    Where the engine's quantisation method has scales beside a weight, as for a checkpoint in fp8, they must be there as well.

    Returns:
        The names of the parameters that were loaded.

    Raises:
        WeightsError: Tensors are missing, unexpected, duplicated, or of another shape, or the model has no parameter for them;
            the message lists them.
    """
    parameters = dict(model.named_parameters())
    slots = {name: layout.slot(name) for name in layout.shapes}
    scales = _scales(slots, parameters)
    loaded: set[str] = set()
    # the name under which each expected tensor came, and the tensor where it has a second name
    arrived: dict[str, str] = {}
    tied: dict[str, Tensor] = {}
    surplus: list[str] = []
    twice: list[str] = []
    misshaped: list[str] = []
    homeless: list[str] = []
    for (parameter, part), shape in layout.zeros.items():
        # by its loader: a layer that quantises what it loads waits until all of it has come
        _copy(parameters[parameter], torch.zeros(shape), part)
    for given, tensor in weights:
        if given in layout.ignored:
            continue
        name = layout.aliases.get(given, given)
        slot = slots.get(name) or scales.get(name)
        expected = layout.shapes.get(name)
        if slot is None:
            surplus.append(given)
        elif name in arrived:
            if arrived[name] == given or name not in tied or not torch.equal(tied[name], tensor):
                twice.append(given)
        else:
            arrived[name] = given
            if name in layout.aliases.values():
                tied[name] = tensor
            if expected is not None and tuple(tensor.shape) != tuple(expected):
                misshaped.append(f"{given} {list(tensor.shape)} instead of {list(expected)}")
            elif slot.parameter not in parameters:
                homeless.append(given)
            else:
                _copy(parameters[slot.parameter], tensor, slot.part)
                loaded.add(slot.parameter)
    missing = [name for name in (*slots, *scales) if name not in arrived]
    report(missing=missing, surplus=surplus, twice=twice, misshaped=misshaped, homeless=homeless)
    return loaded


def _scales(slots: Mapping[str, ParameterSlot], parameters: Mapping[str, nn.Parameter]) -> dict[str, ParameterSlot]:
    """Return the slots of the scales that the model has beside its weights, by the tensors' names."""
    found = {}
    for name, (parameter, part) in slots.items():
        for scale in SCALES:
            beside = f"{parameter.removesuffix('weight')}{scale}"
            if parameter.endswith(".weight") and beside in parameters:
                found[f"{name.removesuffix('weight')}{scale}"] = ParameterSlot(beside, part)
    return found


def report(
    *, missing: list[str], surplus: list[str], twice: list[str], misshaped: list[str], homeless: list[str]
) -> None:
    """Raise WeightsError unless all lists are empty."""
    found = {
        "missing": missing,
        "unexpected": surplus,
        "duplicated": twice,
        "of another shape": misshaped,
        "without a parameter under this quantisation method": homeless,
    }
    if not any(found.values()):
        return
    lines = []
    for what, names in found.items():
        if names:
            more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(f"{len(names)} {what}: {', '.join(names[:NAMED])}{more}")
    if any(name.endswith(SCALES) for name in surplus):
        lines.append("the scales belong to a quantised checkpoint, whose config.json must have its quantization_config")
    raise WeightsError("the checkpoint's tensors do not match its configuration; " + "; ".join(lines))


def _copy(parameter: nn.Parameter, tensor: Tensor, part: int | str | ByHead | None) -> None:
    loader = getattr(parameter, "weight_loader", default_weight_loader)
    if part is None:
        loader(parameter, tensor)
    elif isinstance(part, ByHead):
        # [heads, parts, head_size, …]
        rows = tensor.view(part.heads, len(part.parts), -1, *tensor.shape[1:])
        for place, name in enumerate(part.parts):
            loader(parameter, rows[:, place].flatten(0, 1), name)
    else:
        loader(parameter, tensor, part)
