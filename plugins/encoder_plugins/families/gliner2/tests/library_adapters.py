"""LoRA adapters made by the library, for tests: runs in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def save(folder: Path, target: Path, seed: int, *, rank: int, targets: Sequence[str], spread: float) -> None:
    """Write an adapter of a checkpoint as the library's trainer does, with random weights.

    Args:
        folder: The checkpoint.
        target: The adapter's folder.
        seed: Of its weights.
        rank: Of its matrices.
        targets: Names of layers, as the library's ``apply_lora`` takes them.
        spread: Standard deviation of its weights.
    """
    import torch

    from encoder_plugins.families.gliner2 import reference

    adapted = reference.load(folder).apply_lora(r=rank, alpha=2.0 * rank, targets=list(targets))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=spread, generator=generator)
    adapted.save_pretrained(str(target))


def answers(folder: Path, adapter: Path | None, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the library answers to texts, with scores and offsets, with an adapter that it has loaded by PEFT."""
    import torch
    from gliner2.inference.schema import Schema
    from peft import PeftModel

    from encoder_plugins.families.gliner2 import reference

    library = reference.load(folder)
    if adapter is not None:
        # it changes the library's own layers
        PeftModel.from_pretrained(library, str(adapter)).eval()
    with reference.calm(folder), torch.inference_mode():
        return [
            library.extract(case["text"], Schema.from_dict(case["schema"]), include_confidence=True, include_spans=True)
            for case in cases
        ]
