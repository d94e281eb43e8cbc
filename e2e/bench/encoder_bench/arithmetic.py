"""The least that a GLiNER model has to compute, and how fast a device could do it: the bottom line of every table.

For a text of `n` tokens, `w` words and `c` labels:

    2 * E * n                        the encoder's matrices (every weight with two dimensions but the embedding), E numbers
    + layers * 4 * n^2 * d           scores and sums of attention, d wide; sliding windows of `s` tokens count n * min(n, s)
    + layers * 4 * n * min(2n, r) * d    DeBERTa: content to position and back, r rows of the position table
    + 2 * H * w                      LSTM, start and end projections and the first layer behind them, once for each word
    + 2 * P * c                      the labels' projection
    + 2 * w * width * c * i          the products of spans and labels, i wide

A device's speed is its data sheet's for dense bfloat16, where it is known here; else what a large matrix product reaches.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from encoder_plugins.families.gliner.config import KEY

# operations a second, dense, bfloat16
DATA_SHEETS: Mapping[str, float] = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


@dataclass(frozen=True, slots=True)
class Model:
    """The numbers that the arithmetic needs."""

    encoder: int
    words: int
    labels: int
    layers: int
    width: int
    windows: tuple[int, ...]
    position_rows: int
    max_width: int
    inner: int

    def operations(self, tokens: int, words: int, labels: int) -> float:
        """Return the operations of one text."""
        reach = sum(min(tokens, window) if window else tokens for window in self.windows)
        rows = min(2 * tokens, self.position_rows) * self.layers
        return float(
            2 * self.encoder * tokens
            + 4 * tokens * (reach + rows) * self.width
            + 2 * self.words * words
            + 2 * self.labels * labels
            + 2 * words * self.max_width * labels * self.inner
        )


def read(model: Path) -> Model:
    """Read an artifact's model directory."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    matrices = {name: shape for name, shape in shapes(model).items() if len(shape) == 2}
    encoder = {name: prod(shape) for name, shape in matrices.items() if ".bert_layer." in name and not is_table(name)}
    head = {name: prod(shape) for name, shape in matrices.items() if ".bert_layer." not in name}
    labels = sum(size for name, size in head.items() if name.startswith("prompt_rep_layer."))
    # the second layer behind a span is folded into the labels, and the projection runs on every token
    folded = sum(size for name, size in head.items() if name.endswith("out_project.3.weight"))
    projection = sum(size for name, size in head.items() if "projection" in name)
    layers = config.get("num_hidden_layers", config.get("num_layers", 0))
    inner = next((shape[0] for name, shape in matrices.items() if name.endswith("out_project.0.weight")), 0)
    relative = config["model_type"] == "deberta-v2"
    return Model(
        encoder=sum(encoder.values()) + projection,
        words=sum(head.values()) - labels - folded - projection,
        labels=labels + folded,
        layers=layers,
        width=config.get("hidden_size") or config["num_heads"] * config["d_kv"],
        windows=tuple(windows(config, layers)),
        position_rows=2 * config.get("position_buckets", 0) if relative else 0,
        max_width=config[KEY]["max_width"],
        inner=inner,
    )


def windows(config: Mapping[str, Any], layers: int) -> list[int]:
    """Return the tokens that each layer's attention reaches, 0 for all of a text: of a ModernBERT, or of an encoder without windows."""
    if config["model_type"] != "modernbert":
        return [0] * layers
    every = config.get("global_attn_every_n_layers") or 3
    return [0 if layer % every == 0 else config["local_attention"] for layer in range(layers)]


def is_table(name: str) -> bool:
    """Return whether a weight is looked up in, rather than multiplied by."""
    return any(part in name for part in ("embeddings", "embed_tokens", "shared.", "relative_attention_bias"))


def shapes(model: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight in an artifact's model directory."""
    found: dict[str, tuple[int, ...]] = {}
    for file in model.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        found |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return found


def speed(device: str, dtype: str) -> tuple[float, str]:
    """Return a device's operations a second, and where the number is from."""
    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
        for known, value in DATA_SHEETS.items():
            if known in name.replace("-", " ").split() and dtype in ("bfloat16", "float16"):
                return value, f"{name}: {value / 1e12:.0f} T/s by its data sheet"
    size = 8192 if device == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    best = min(_timed(left, right) for _ in range(8))
    value = 2 * size**3 / best
    return value, f"{value / 1e12:.2f} T/s by a product of {size} x {size} matrices in {dtype}"


def _timed(left: Any, right: Any) -> float:
    import time

    import torch

    def wait() -> None:
        if left.is_cuda:
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    torch.mm(left, right)
    wait()
    return time.perf_counter() - start
