"""What the models of all GLiNER plugins do alike in the engine: an encoder, the span head, and strict loading of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones import weight_loading as checkpoint_weights
from encoder_plugins.backbones.weight_loading import Layout
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.heads import span

# where gliner has its encoder
ENCODER = "token_rep_layer.bert_layer.model."


class GlinerSpanModel(nn.Module):
    """An encoder of ours with GLiNER's span head; subclasses name the encoder.

    Attributes:
        encoder_class: The encoder, a module of vLLM's.
        encoder_layout: From the configuration to what the encoder's checkpoint holds.
    """

    is_pooling_model = True
    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., Layout]]

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
        """Load a checkpoint that holds exactly what the configuration asks for; raises WeightsError for any other."""
        return checkpoint_weights.load(self, weights, self.layout())

    def layout(self) -> Layout:
        """Return what the checkpoint must hold."""
        head = span.layout(self.config.hidden_size, self.pooler.config)
        return checkpoint_weights.join(
            type(self).encoder_layout(self.config).under(ENCODER, "encoder."), head.under("", "pooler.head.")
        )
