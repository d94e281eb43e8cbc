"""The checkpoint of a GLiNER model, as plain data: prep and the engine read it by this code. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, join, linear
from encoder_plugins.families.gliner.config import GlinerConfig, Head
from encoder_plugins.families.gliner.heads import span_layout, token_layout

# what precedes the names of the encoder's tensors in a GLiNER checkpoint
ENCODER = "token_rep_layer.bert_layer.model."
# what precedes those of the encoder of labels, where there is one
LABEL_ENCODER = "token_rep_layer.labels_encoder.model."

_LABEL_PROJECTION = "token_rep_layer.labels_projection"
_LSTM = re.compile(r"rnn\.lstm\.(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")
_PROJECTION = MappingProxyType(
    {
        "token_rep_layer.projection.weight": ParameterSlot("projection.weight"),
        "token_rep_layer.projection.bias": ParameterSlot("projection.bias"),
    }
)
_SHAPES: Mapping[Head, Callable[[int], dict[str, Shape]]] = MappingProxyType(
    {"span": span_layout.shapes, "token": token_layout.shapes}
)
_SLOTS: Mapping[str, ParameterSlot] = MappingProxyType({**_PROJECTION, **span_layout.SLOTS, **token_layout.SLOTS})


def layout(encoder: CheckpointLayout, encoder_size: int, config: GlinerConfig) -> CheckpointLayout:
    """Return the tensors of a whole GLiNER checkpoint; the parameters are those of ``model.GlinerModel``.

    Args:
        encoder: The layout of the encoder's own checkpoint.
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
    """
    return join(encoder.under(ENCODER, "encoder."), head_layout(encoder_size, config).under("", "pooler.head."))


def bi_layout(
    encoder: CheckpointLayout, encoder_size: int, labels: CheckpointLayout, label_size: int, config: GlinerConfig
) -> CheckpointLayout:
    """Return the tensors of a checkpoint with an encoder for labels; the parameters are those of ``bi_model.GlinerBiModel``.

    Args:
        encoder: The layout of the checkpoint of the texts' encoder.
        encoder_size: Width of that encoder's rows.
        labels: The layout of the checkpoint of the labels' encoder.
        label_size: Width of that encoder's rows.
        config: The checkpoint's own settings.
    """
    assert config.label_encoder is not None
    head = head_layout(encoder_size, replace(config, lstm_layers=0))
    lstm = dict.fromkeys(_lstm(config), "the library never applies the LSTM of a model with an encoder for labels")
    projection = linear(_LABEL_PROJECTION, config.hidden_size, label_size) if config.label_encoder.projection else {}
    return join(
        encoder.under(ENCODER, "encoder."),
        replace(head, ignored=lstm).under("", "pooler.head."),
        labels.under(LABEL_ENCODER, "pooler.labels.encoder."),
        CheckpointLayout(
            shapes=projection,
            slot=lambda name: ParameterSlot(name.replace(_LABEL_PROJECTION, "pooler.labels.projection")),
        ),
    )


def head_layout(encoder_size: int, config: GlinerConfig) -> CheckpointLayout:
    """Return the tensors of a GLiNER checkpoint beside its encoder's; the parameters are those of its head."""
    shapes: dict[str, Shape] = {}
    if config.projection:
        shapes |= linear("token_rep_layer.projection", config.hidden_size, encoder_size)
    shapes |= _lstm(config)
    shapes |= _SHAPES[config.head](config.hidden_size)
    if config.represent_spans:
        shapes |= span_layout.span_shapes(config.hidden_size)
    return CheckpointLayout(shapes=shapes, slot=slot)


def _lstm(config: GlinerConfig) -> dict[str, Shape]:
    """Return the tensors of the LSTM over words."""
    size, half = config.hidden_size, config.hidden_size // 2
    shapes: dict[str, Shape] = {}
    for layer in range(config.lstm_layers):
        for direction in ("", "_reverse"):
            shapes[f"rnn.lstm.weight_ih_l{layer}{direction}"] = (4 * half, size if layer == 0 else 2 * half)
            shapes[f"rnn.lstm.weight_hh_l{layer}{direction}"] = (4 * half, half)
            for name in ("bias_ih", "bias_hh"):
                shapes[f"rnn.lstm.{name}_l{layer}{direction}"] = (4 * half,)
    return shapes


def slot(name: str) -> ParameterSlot:
    """Return the slot of a head's tensor ``name``."""
    if found := _LSTM.fullmatch(name):
        kind, source, layer, backward = found.groups()
        return ParameterSlot(f"lstm.{layer}.{kind}_{'input' if source == 'ih' else 'hidden'}", 1 if backward else 0)
    return _SLOTS[name]
