"""Our heads and gliner's on the same rows and weights, for the tests of each head."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from encoder_checkpoints.original import original

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.families.gliner.config import GlinerConfig
    from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
    from encoder_plugins.families.gliner.heads.tests.library_head import ENT, SEP, Rows, Text

HEAD = "encoder_plugins.families.gliner.heads.tests.library_head"


def config(**more: Any) -> GlinerConfig:
    values = {
        "hidden_size": 32,
        "max_width": 5,
        "max_words": 60,
        "class_token": "<<ENT>>",
        "class_token_id": ENT,
        "separator_token": "<<SEP>>",
        "separator_token_id": SEP,
        "embed_class_token": True,
        "lstm_layers": 1,
        "projection": True,
    }
    return GlinerConfig(**{**values, **more})


class Library:
    """gliner's own model with random weights, behind ``Rows``; computes in the library's own environment."""

    def __init__(self, settings: GlinerConfig, seed: int = 0) -> None:
        self._key = (settings.to_dict(), seed)

    def tensors(self) -> dict[str, torch.Tensor]:
        found: dict[str, np.ndarray] = original("gliner").call(f"{HEAD}:tensors", *self._key)
        return {name: torch.from_numpy(value) for name, value in found.items()}

    def logits(self, *texts: Text) -> list[torch.Tensor]:
        """Return `[words, widths, labels]`, or `[words, labels, 3]` where words are scored, for each text of a padded batch."""
        given = [(one.ids.tolist(), one.words) for one in texts]
        found: list[np.ndarray] = original("gliner").call(f"{HEAD}:logits", *self._key, given)
        return [torch.from_numpy(value) for value in found]

    def proposed(self, one: Text, threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and last words `[spans, 2]` of what a text's words propose, and its logits `[spans, labels]`."""
        found: tuple[np.ndarray, np.ndarray] = original("gliner").call(
            f"{HEAD}:proposed", *self._key, (one.ids.tolist(), one.words), threshold
        )
        return found


def metadata(
    lengths: Sequence[int], extras: Sequence[dict[str, Any] | None], scheduled: Sequence[int] | None = None
) -> Any:
    """Return what vLLM's runners give a pooler."""
    from vllm import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    scheduled = scheduled or lengths
    made = PoolingMetadata(
        prompt_lens=torch.tensor(lengths),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task="token_classify", extra_kwargs=extra) for extra in extras],
        pooling_states=[PoolingStates() for _ in lengths],
    )
    made.build_pooling_cursor(np.asarray(scheduled), torch.tensor(scheduled), torch.device("cpu"))
    return made


def answers_of(ours: GlinerPooler, texts: Sequence[Text], extras: Sequence[dict[str, Any] | None]) -> list[np.ndarray]:
    hidden = torch.cat([Rows().rows(one.ids) for one in texts])
    return [rows.numpy() for rows in ours(hidden, metadata([len(one.ids) for one in texts], extras))]
