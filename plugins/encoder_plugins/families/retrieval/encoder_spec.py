"""What a plugin says about its encoder: the name in an artifact, the tensors, and the published architectures.

Neither torch nor vLLM is imported here: prep and the start of serving use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.families.retrieval import settings
from encoder_plugins.families.retrieval.settings import CONFIG
from encoder_plugins.prep.checkpoint_json import refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """The encoder of a plugin.

    Attributes:
        architecture: The architecture in an artifact.
        published: What may precede the names of the encoder's tensors, by the architecture of published checkpoints. Tensors
            of other names belong to a head, which the library leaves out.
        read: The engine's own reader of the configuration; its result has ``hidden_size``, ``max_tokens``, ``vocabulary``.
        layout: The tensors that the engine's own class loads.
        stanford: What precedes the names of the encoder's tensors in Stanford's format, by the type of encoder; empty where
            checkpoints in that format are not served.
    """

    architecture: str
    published: Mapping[str, str]
    read: Callable[[Any], Any]
    layout: Callable[[Any], CheckpointLayout]
    stanford: Mapping[str, str] = field(default_factory=dict)

    def prefix(self, config: Mapping[str, Any]) -> str:
        """Return what precedes the names of tensors.

        Raises:
            Unsupported: The configuration names another architecture.
        """
        named = config.get("architectures")
        if self.stanford and settings.is_stanford(config):
            prefix = self.stanford.get(str(config.get("model_type")))
            if prefix is None:
                raise refusal(CONFIG, "model_type", config.get("model_type"), list(self.stanford))
            return prefix
        if not isinstance(named, list) or len(named) != 1 or str(named[0]) not in self.published:
            raise refusal(CONFIG, "architectures", named, [[name] for name in self.published])
        return self.published[str(named[0])]
