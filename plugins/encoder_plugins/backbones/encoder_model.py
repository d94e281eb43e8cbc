"""What every model of ours is to vLLM: an encoder, a pooler, and strict loading of both from one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones import weight_loading
from encoder_plugins.backbones.attention import EncoderAttention
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.mark_channel import MarkedTextsState, TextSeparator, texts_of_tokens
from encoder_plugins.backbones.plain_attention import NativeAttention
from encoder_plugins.backbones.sendable import keep_sendable
from encoder_plugins.backbones.token_marks import Ints, Texts
from encoder_plugins.backbones.whole_graphs import WholeGraphs


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class EncoderModel(nn.Module):
    """A packed batch of tokens in, one row per token out. A subclass gives the encoder, the pooler and the layout.

    Attributes:
        query_only_tokens: Whether requests of this model may have tokens that nothing attends to; their kernels are then
            compiled when the model is loaded, not by the first request.
        encoder: The encoder.
        pooler: What turns rows into the answers of requests.
        graphs: Whole passes of the encoder as CUDA graphs; none before they are captured.
    """

    is_pooling_model = True
    query_only_tokens: ClassVar[bool] = False

    def __init__(self, *, vllm_config: VllmConfig, encoder: nn.Module, pooler: nn.Module) -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.encoder: Any = encoder
        self.pooler = pooler
        keep_sendable(pooler)
        self._separate = TextSeparator(encoder, vllm_config)
        self.graphs = WholeGraphs(encoder, self._separate.metadata, vllm_config)
        for layer in encoder.modules():
            if isinstance(layer, EncoderAttention | NativeAttention):
                layer.query_only_tokens = self.query_only_tokens

    @staticmethod
    def get_model_state_cls() -> type[MarkedTextsState]:
        """Return the state that vLLM's second model runner keeps for this model."""
        return MarkedTextsState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the vocabulary's rows, `[tokens, embedding]`."""
        rows: Tensor = self.encoder.embed_input_ids(input_ids)
        return rows

    def capture(self, input_ids: Tensor, positions: Tensor) -> None:
        """Capture whole passes as CUDA graphs, and the pooler's where it has any.

        Args:
            input_ids: The buffer that holds the ids of every batch.
            positions: The buffer that holds the positions of every batch.
        """
        self.graphs.capture(input_ids, positions)
        capture: Any = getattr(self.pooler, "capture", None)
        if capture is not None:
            capture(input_ids.device)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        texts: Texts | None = None,
        offsets: Ints | None = None,
    ) -> Tensor:
        """Return `[tokens, hidden]` of a packed batch.

        Args:
            input_ids: `[tokens]`; None where ``inputs_embeds`` is given.
            positions: `[tokens]`: each token's position in its request; changed in place where requests hold several texts.
            intermediate_tensors: Not used: there is no pipeline parallelism.
            inputs_embeds: `[tokens, embedding]`; None where ``input_ids`` is given.
            token_type_ids: `[tokens]`: the numbers of tokens, from runner V1, where a request of the batch has marks.
            texts: The texts of the batch, from runner V2, where a request of the batch has marks.
            offsets: `[requests + 1]` int32, from runner V2: the first token of each request, and the end of the last.
        """
        del intermediate_tensors
        if token_type_ids is not None:
            texts = texts_of_tokens(token_type_ids, positions)
        if texts is not None:
            offsets = texts.offsets if texts.keys is None else None
        if offsets is not None and (padded := self.graphs.fitting(offsets, input_ids)) is not None:
            if texts is not None:
                self._separate.set_positions(texts, positions)
            return self.graphs.run(padded, len(positions))
        if texts is not None:
            self._separate(texts, positions)
        hidden: Tensor = self.encoder(input_ids, positions, inputs_embeds)
        return hidden

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        raise NotImplementedError

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint that holds exactly what the configuration requires; raises WeightsError for any other."""
        return weight_loading.load(self, weights, self.layout())


class NamedEncoderModel(EncoderModel):
    """A model whose encoder a subclass names, since vLLM needs one class per architecture. Its family gives the pooler.

    Attributes:
        encoder_class: The encoder.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str, pooler: nn.Module) -> None:
        encoder = self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder"))
        super().__init__(vllm_config=vllm_config, encoder=encoder, pooler=pooler)
