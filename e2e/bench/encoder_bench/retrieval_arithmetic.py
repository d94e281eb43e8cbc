"""The least that a retriever's encoder has to compute for a text, as ``arithmetic`` counts it for GLiNER.

For a text of `n` tokens:

    2 * M * n                every weight with two dimensions but tables that are looked up in: M numbers
    + 2 * V                  Dense modules behind one vector for each text, V numbers
    + 4 * n * r * d          scores and sums of each layer's attention, d wide: r is n, half of it for a causal layer, or a sliding
                             window's tokens where those are fewer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from encoder_bench import arithmetic

CAUSAL = frozenset({"lfm2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The numbers that the arithmetic needs.

    Attributes:
        matrices: Numbers that every token is multiplied by.
        vector: Numbers that a text's one vector is multiplied by.
        width: Of attention: heads times their size.
        windows: Of each layer with attention; 0 for none.
        causal: Whether a token attends to those before it only.
    """

    matrices: int
    vector: int
    width: int
    windows: tuple[int, ...]
    causal: bool

    def operations(self, tokens: int) -> float:
        """Return the operations of one text."""
        whole = tokens / 2 if self.causal else tokens
        reach = sum(min(whole, window) if window else whole for window in self.windows)
        return 2.0 * self.matrices * tokens + 2.0 * self.vector + 4.0 * tokens * reach * self.width


def read(model: Path, *, pooled: bool) -> Encoder:
    """Read an artifact's model directory.

    Args:
        model: The directory.
        pooled: Whether Dense modules follow one vector for each text, rather than one for each token.
    """
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    sizes = {
        name: prod(shape)
        for name, shape in arithmetic.shapes(model).items()
        # BERT's own pooler, which an artifact may still have, is not used
        if len(shape) == 2 and not arithmetic.is_table(name) and not name.startswith("pooler.")
    }
    behind = sum(size for name, size in sizes.items() if name.startswith("dense.")) if pooled else 0
    heads = config["num_attention_heads"]
    return Encoder(
        matrices=sum(sizes.values()) - behind,
        vector=behind,
        width=heads * config.get("head_dim", config["hidden_size"] // heads),
        windows=tuple(_windows(config)),
        causal=config["model_type"] in CAUSAL,
    )


def _windows(config: Mapping[str, Any]) -> list[int]:
    listed = config.get("layer_types")
    if listed is None:
        return arithmetic.windows(config, config["num_hidden_layers"])
    window = config.get("sliding_window") or config.get("local_attention") or 0
    return [window if kind == "sliding_attention" else 0 for kind in listed if kind != "conv"]
