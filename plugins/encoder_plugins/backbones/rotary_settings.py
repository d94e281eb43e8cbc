"""The rotary bases of encoders, one for all layers or one for each kind, read from a configuration. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.config_checks import ConfigFields

GLOBAL, LOCAL = "full_attention", "sliding_attention"
# what transformers writes beside those of layers where all layers are of one kind: of no layer
_OF_NO_LAYER: Mapping[str, Any] = MappingProxyType({"rope_type": "default", "rope_theta": None})


def layer_types(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Return the type of each layer where the configuration lists them; None where it does not.

    Raises:
        UnsupportedConfig: The list has another length, or another type.
    """
    listed = fields.get("layer_types")
    if listed is None:
        return None
    if (
        not isinstance(listed, list | tuple)
        or len(listed) != layers
        or not all(kind in (GLOBAL, LOCAL) for kind in listed)
    ):
        raise fields.refuse("layer_types", f"it must name {GLOBAL} or {LOCAL} for each of {layers} layers")
    return tuple(listed)


def names_kinds_only(parameters: Any) -> bool:
    """Return whether the content of ``rope_parameters`` has an object for each kind of layers, and nothing of any other layer."""
    return isinstance(parameters, Mapping) and all(
        name in (GLOBAL, LOCAL) or (name, value) in _OF_NO_LAYER.items() for name, value in parameters.items()
    )


def thetas(fields: ConfigFields, flat: Mapping[str, str]) -> dict[str, float]:
    """Return the rotary base by layer type, from the nested form of transformers 5 or the flat one of transformers 4.

    Where a configuration has both, transformers uses the nested one.

    Args:
        fields: The configuration.
        flat: The fields of the flat form, by layer type.

    Raises:
        UnsupportedConfig: Positions are scaled, or a base is not a number above 0.
    """
    parameters, scaling = (fields.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    if not names_kinds_only(parameters):
        raise fields.refuse("rope_parameters", f"it may have {GLOBAL} and {LOCAL} only, each with a rope_theta")
    # a configuration object of transformers 5 returns its rope_parameters under both names
    if scaling and scaling != parameters:
        raise fields.refuse("rope_scaling", "positions are not scaled")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "whole heads are rotated")
    return {kind: _theta(fields, parameters.get(kind) or {}, kind, flat[kind]) for kind in (GLOBAL, LOCAL)}


def theta(fields: ConfigFields, flat: str) -> float:
    """Return the rotary base of a model whose layers all have the same, from either form.

    Args:
        fields: The configuration.
        flat: The field of the flat form.

    Raises:
        UnsupportedConfig: Positions are scaled, or the base is not a number above 0.
    """
    parameters, scaling = (fields.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    if scaling and scaling != parameters:
        raise fields.refuse("rope_scaling", "positions are not scaled")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "whole heads are rotated")
    return _theta(fields, parameters, "it", flat)


def _theta(fields: ConfigFields, parameters: Any, kind: str, flat: str) -> float:
    plain = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
    refusal = fields.refuse("rope_parameters", f"{kind} may have a rope_theta only, positions are not scaled")
    if not isinstance(parameters, Mapping) or set(parameters) - plain:
        raise refusal
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise refusal
    if parameters.get("rope_type", parameters.get("type", "default")) != "default":
        raise refusal
    named = parameters.get("rope_theta")
    base = fields.get(flat) if named is None else named
    if isinstance(base, bool) or not isinstance(base, int | float) or not base > 0:
        raise fields.refuse(flat if named is None else "rope_parameters", "rope_theta must be a number above 0")
    return float(base)
