"""The models of all GLiNER plugins in the engine: an encoder, the span head, and strict loading of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones import weight_loading
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.heads import span, span_layout


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class GlinerSpanModel(nn.Module):
    """An encoder with GLiNER's span head. vLLM needs one class per architecture: a subclass names its encoder.

    Attributes:
        encoder_class: The encoder.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    is_pooling_model = True
    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        settings = GlinerConfig.from_dict(getattr(self.config, KEY))
        self.encoder: Any = self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder"))
        self.pooler = span.GlinerSpanPooler(self.config.hidden_size, settings)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the vocabulary's rows, `[tokens, embedding]`."""
        rows: Tensor = self.encoder.embed_input_ids(input_ids)
        return rows

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return `[tokens, hidden]` of a packed batch."""
        del intermediate_tensors
        hidden: Tensor = self.encoder(input_ids, positions, inputs_embeds)
        return hidden

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint that holds exactly what the configuration requires; raises WeightsError for any other."""
        encoder = type(self).encoder_layout(self.config)
        return weight_loading.load(
            self, weights, span_layout.layout(encoder, self.config.hidden_size, self.pooler.config)
        )
