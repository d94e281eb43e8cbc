"""Deliberate mistakes in what conversion writes for ModernBERT: each must end in a refusal or in Failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from encoder_plugins.families.retrieval.tests.conversion_mutants import of_attended, of_native, of_pylate
from encoder_plugins.parity.tests.mutants import Mutant, config, filled, halves_swapped, row_lost, thirds_swapped


def of_encoder() -> Iterator[Mutant]:
    """Mistakes in the encoder."""
    yield Mutant("queries and keys swapped", thirds_swapped("layers.1.attn.Wqkv.weight"))
    yield Mutant("gate and value swapped", halves_swapped("layers.1.mlp.Wi.weight", 0))
    yield Mutant("the final norm's weight dropped", filled("final_norm.weight", 1.0))
    yield Mutant("an embedding row lost", row_lost("embeddings.tok_embeddings.weight", 6))
    yield Mutant("the window of local layers halved", config(local_attention=8))
    yield Mutant("the bases of positions swapped", bases_swapped)


def bases_swapped(folder: Path) -> None:
    """Rotate local layers by the base of global ones, and the other way round."""
    path = folder / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    parts = whole["rope_parameters"]
    parts["full_attention"], parts["sliding_attention"] = parts["sliding_attention"], parts["full_attention"]
    path.write_text(json.dumps(whole), encoding="utf-8")


def of(checkpoint: str) -> list[Mutant]:
    """Return the mistakes in the conversion of a tiny checkpoint."""
    if checkpoint == "pylate":
        return [*of_pylate(), *of_encoder()]
    if checkpoint == "pylate-attend":
        return list(of_attended())
    return list(of_native()) if checkpoint == "native-three-dense" else []
