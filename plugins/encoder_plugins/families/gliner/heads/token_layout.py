"""The tensors of GLiNER's token head in a checkpoint, as plain data. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from encoder_plugins.backbones.checkpoint_layout import ParameterSlot, Shape, linear


def shapes(size: int) -> dict[str, Shape]:
    """Return the tensors of a head of width ``size``; the parameters are those of ``token_head.TokenHead``."""
    found: dict[str, Shape] = {}
    found |= linear("scorer.proj_token", 2 * size, size)
    found |= linear("scorer.proj_label", 2 * size, size)
    found |= linear("scorer.out_mlp.0", 4 * size, 3 * size)
    found |= linear("scorer.out_mlp.3", 3, 4 * size)
    return found


# 0 and 3 are the linear layers of gliner's Sequential(Linear, Dropout, ReLU, Linear)
SLOTS: Mapping[str, ParameterSlot] = MappingProxyType(
    {
        "scorer.proj_token.weight": ParameterSlot("token_in.weight"),
        "scorer.proj_token.bias": ParameterSlot("token_in.bias"),
        "scorer.proj_label.weight": ParameterSlot("label_in.weight"),
        "scorer.proj_label.bias": ParameterSlot("label_in.bias"),
        "scorer.out_mlp.0.weight": ParameterSlot("inner.weight"),
        "scorer.out_mlp.0.bias": ParameterSlot("inner.bias"),
        "scorer.out_mlp.3.weight": ParameterSlot("out.weight"),
        "scorer.out_mlp.3.bias": ParameterSlot("out.bias"),
    }
)
