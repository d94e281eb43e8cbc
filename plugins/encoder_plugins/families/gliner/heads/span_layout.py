"""The tensors of GLiNER's span head in a checkpoint, as plain data. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from encoder_plugins.backbones.checkpoint_layout import ParameterSlot, Shape, linear


def shapes(size: int) -> dict[str, Shape]:
    """Return the tensors of a head of width ``size``; the parameters are those of ``span_head.SpanHead``."""
    found = span_shapes(size)
    found |= linear("prompt_rep_layer.0", 4 * size, size)
    found |= linear("prompt_rep_layer.3", size, 4 * size)
    return found


def span_shapes(size: int) -> dict[str, Shape]:
    """Return those behind which spans have vectors; the parameters are those of ``layers.MarkedHead``."""
    found: dict[str, Shape] = {}
    markers = "span_rep_layer.span_rep_layer"
    for name, inputs in (("project_start", size), ("project_end", size), ("out_project", 2 * size)):
        found |= linear(f"{markers}.{name}.0", 4 * size, inputs)
        found |= linear(f"{markers}.{name}.3", size, 4 * size)
    return found


# 0 and 3 are the linear layers of gliner's Sequential(Linear, ReLU, Dropout, Linear)
SLOTS: Mapping[str, ParameterSlot] = MappingProxyType(
    {
        "span_rep_layer.span_rep_layer.project_start.0.weight": ParameterSlot("marker_in.weight", 0),
        "span_rep_layer.span_rep_layer.project_start.0.bias": ParameterSlot("marker_in.bias", 0),
        "span_rep_layer.span_rep_layer.project_start.3.weight": ParameterSlot("marker_out.weight", 0),
        "span_rep_layer.span_rep_layer.project_start.3.bias": ParameterSlot("marker_out.bias", 0),
        "span_rep_layer.span_rep_layer.project_end.0.weight": ParameterSlot("marker_in.weight", 1),
        "span_rep_layer.span_rep_layer.project_end.0.bias": ParameterSlot("marker_in.bias", 1),
        "span_rep_layer.span_rep_layer.project_end.3.weight": ParameterSlot("marker_out.weight", 1),
        "span_rep_layer.span_rep_layer.project_end.3.bias": ParameterSlot("marker_out.bias", 1),
        "span_rep_layer.span_rep_layer.out_project.0.weight": ParameterSlot("span_in.weight", "columns"),
        "span_rep_layer.span_rep_layer.out_project.0.bias": ParameterSlot("span_in.bias", 0),
        "span_rep_layer.span_rep_layer.out_project.3.weight": ParameterSlot("span_out.weight"),
        "span_rep_layer.span_rep_layer.out_project.3.bias": ParameterSlot("span_out.bias"),
        "prompt_rep_layer.0.weight": ParameterSlot("prompt_in.weight"),
        "prompt_rep_layer.0.bias": ParameterSlot("prompt_in.bias"),
        "prompt_rep_layer.3.weight": ParameterSlot("prompt_out.weight"),
        "prompt_rep_layer.3.bias": ParameterSlot("prompt_out.bias"),
    }
)
