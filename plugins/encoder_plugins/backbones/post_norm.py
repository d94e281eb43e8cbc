"""BERT and its relatives, equal to transformers' ``BertModel``, ``XLMRobertaModel``, ``DistilBertModel`` and ``MPNetModel``.

Every block is followed by its norm; MPNet adds T5's bias by distance to the scores, one table for all layers. XLM-RoBERTa and
MPNet count positions from 2.

Sources: Devlin et al., 2018, arXiv 1810.04805; Conneau et al., 2019, arXiv 1911.02116; Sanh et al., 2019, arXiv 1910.01108; Song
et al., 2020, arXiv 2004.09297.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_plugins.backbones import post_norm_settings
from encoder_plugins.backbones.attention import RelativeBiasAttention
from encoder_plugins.backbones.bias_table import BiasTable
from encoder_plugins.backbones.elementwise import LayerNorm, activation
from encoder_plugins.backbones.plain_attention import plain_attention
from encoder_plugins.backbones.post_norm_settings import Settings


class PostNormEmbeddings(nn.Module):
    """Words plus absolute positions, plus what stands for tokens of type 0."""

    def __init__(self, settings: Settings, *, prefix: str) -> None:
        super().__init__()
        size = settings.hidden_size
        self.first_position = settings.first_position
        self.word_embeddings = VocabParallelEmbedding(settings.vocabulary, size, prefix=f"{prefix}.word_embeddings")
        self.position_embeddings = nn.Embedding(settings.positions, size)
        self.token_type_embeddings = nn.Embedding(settings.token_types, size) if settings.token_types else None
        self.LayerNorm = LayerNorm(size, settings.epsilon)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Turn `[tokens, hidden]` rows of the vocabulary into `[tokens, hidden]`."""
        if self.token_type_embeddings is not None:
            embeddings = embeddings + self.token_type_embeddings.weight[0]
        hidden: Tensor = self.LayerNorm(embeddings, self.position_embeddings(positions + self.first_position))
        return hidden


class PostNormLayer(nn.Module):
    """Attention and feed-forward, each followed by its norm."""

    def __init__(self, settings: Settings, table: BiasTable | None, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        hidden, inner = settings.hidden_size, settings.intermediate_size
        heads = settings.heads // get_tensor_model_parallel_world_size()
        scale = settings.head_size**-0.5
        self.qkv_proj = QKVParallelLinear(
            hidden, settings.head_size, settings.heads, quant_config=quant_config, prefix=f"{prefix}.qkv_proj"
        )
        self.attention = (
            plain_attention(
                heads, settings.head_size, scale, window=None, longest=settings.max_tokens, prefix=f"{prefix}.attention"
            )
            if table is None
            # a function, so that the table does not become a submodule of every layer
            else RelativeBiasAttention(
                heads, settings.head_size, scale, bias=table.by_distance, prefix=f"{prefix}.attention"
            )
        )
        self.dense = RowParallelLinear(hidden, hidden, quant_config=quant_config, prefix=f"{prefix}.dense")
        self.attention_norm = LayerNorm(hidden, settings.epsilon)
        self.intermediate = ColumnParallelLinear(
            hidden, inner, quant_config=quant_config, prefix=f"{prefix}.intermediate"
        )
        self.activation = activation(settings.activation)
        self.output = RowParallelLinear(inner, hidden, quant_config=quant_config, prefix=f"{prefix}.output")
        self.output_norm = LayerNorm(hidden, settings.epsilon)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.qkv_proj(hidden)[0].chunk(3, dim=-1)  # [tokens, heads * head_size] each
        hidden = self.attention_norm(self.dense(self.attention(query, key, value))[0], hidden)
        inner = self.activation(self.intermediate(hidden)[0])
        normed: Tensor = self.output_norm(self.output(inner)[0], hidden)
        return normed


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class PostNormEncoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out. A subclass reads the configuration.

    Args:
        vllm_config: The engine's configuration.
        prefix: The encoder's name in the model.
        config: The encoder's own configuration; by default the engine's model's.

    Attributes:
        read: Gives the settings from a configuration.
    """

    read: ClassVar[Callable[..., Settings]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__()
        settings = type(self).read(vllm_config.model_config.hf_config if config is None else config)
        self.embeddings = PostNormEmbeddings(settings, prefix=f"{prefix}.embeddings")
        self.relative = BiasTable(settings.buckets, settings.heads, settings.max_distance) if settings.buckets else None
        self.layers = nn.ModuleList(
            PostNormLayer(settings, self.relative, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(settings.layers)
        )

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, hidden]`."""
        rows: Tensor = self.embeddings.word_embeddings(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        hidden: Tensor = self.embeddings(inputs_embeds, positions)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class BertEncoder(PostNormEncoder):
    """BERT, RoBERTa and XLM-RoBERTa."""

    read = staticmethod(post_norm_settings.read_bert)


class DistilBertEncoder(PostNormEncoder):
    """DistilBERT."""

    read = staticmethod(post_norm_settings.read_distilbert)


class MPNetEncoder(PostNormEncoder):
    """MPNet."""

    read = staticmethod(post_norm_settings.read_mpnet)
