"""The part of an artifact's ``config.json`` that is GLiNER2's own: written by prep, read by the pooler.

``config.json`` is the encoder's own configuration with two changes: ``architectures`` names our model class, and ``gliner2`` holds
this object. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KEY = "gliner2"
COUNTING_LAYERS = ("count_lstm", "count_lstm_v2", "count_lstm_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gliner2Config:
    """What decides an answer, beside weights, encoder and tokenizer. Names are config.json's of the checkpoint.

    Attributes:
        max_width: Words of the longest span.
        counting_layer: How a field's query is made for each instance; one of ``COUNTING_LAYERS``.
    """

    max_width: int
    counting_layer: str

    def to_dict(self) -> dict[str, Any]:
        """Return what goes under ``gliner2`` in config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Gliner2Config:
        """Read what ``to_dict`` wrote; raises TypeError where a field is missing or unknown."""
        return cls(**values)
