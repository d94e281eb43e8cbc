"""The checkpoint of GLiNER's span models, as plain data: prep and the engine read it by this code. Standard library only."""

from __future__ import annotations

import re

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, join, linear
from encoder_plugins.families.gliner.config import GlinerConfig

# what precedes the names of the encoder's tensors in a GLiNER checkpoint
ENCODER = "token_rep_layer.bert_layer.model."


def layout(encoder: CheckpointLayout, encoder_size: int, config: GlinerConfig) -> CheckpointLayout:
    """Return the tensors of a whole GLiNER checkpoint; the parameters are those of ``model.GlinerSpanModel``.

    Args:
        encoder: The layout of the encoder's own checkpoint.
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
    """
    return join(encoder.under(ENCODER, "encoder."), head_layout(encoder_size, config).under("", "pooler.head."))


def head_layout(encoder_size: int, config: GlinerConfig) -> CheckpointLayout:
    """Return the tensors of a GLiNER checkpoint beside its encoder's; the parameters are those of ``span_head.SpanHead``."""
    size, half = config.hidden_size, config.hidden_size // 2
    shapes: dict[str, Shape] = {}
    if config.projection:
        shapes |= linear("token_rep_layer.projection", size, encoder_size)
    for layer in range(config.lstm_layers):
        for direction in ("", "_reverse"):
            shapes[f"rnn.lstm.weight_ih_l{layer}{direction}"] = (4 * half, size if layer == 0 else 2 * half)
            shapes[f"rnn.lstm.weight_hh_l{layer}{direction}"] = (4 * half, half)
            for name in ("bias_ih", "bias_hh"):
                shapes[f"rnn.lstm.{name}_l{layer}{direction}"] = (4 * half,)
    markers = "span_rep_layer.span_rep_layer"
    for name, inputs in (("project_start", size), ("project_end", size), ("out_project", 2 * size)):
        shapes |= linear(f"{markers}.{name}.0", 4 * size, inputs)
        shapes |= linear(f"{markers}.{name}.3", size, 4 * size)
    shapes |= linear("prompt_rep_layer.0", 4 * size, size)
    shapes |= linear("prompt_rep_layer.3", size, 4 * size)
    return CheckpointLayout(shapes=shapes, slot=slot)


# 0 and 3 are the linear layers of gliner's Sequential(Linear, ReLU, Dropout, Linear)
_SLOTS = {
    "token_rep_layer.projection.weight": ParameterSlot("projection.weight"),
    "token_rep_layer.projection.bias": ParameterSlot("projection.bias"),
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


_LSTM = re.compile(r"rnn\.lstm\.(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")


def slot(name: str) -> ParameterSlot:
    """Return the slot of the head's tensor ``name``."""
    if found := _LSTM.fullmatch(name):
        kind, source, layer, backward = found.groups()
        return ParameterSlot(f"lstm.{layer}.{kind}_{'input' if source == 'ih' else 'hidden'}", 1 if backward else 0)
    return _SLOTS[name]
