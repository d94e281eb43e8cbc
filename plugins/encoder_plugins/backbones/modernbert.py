"""ModernBERT (Warner et al., 2024, arXiv 2412.13663) and mmBERT, equal to transformers' ``ModernBertModel``.

vLLM's own ModernBERT is exact on one rank, but splits queries, keys and values as if each rank had all heads, which is
wrong with tensor parallelism, and it skips tensors that it does not know. This one is built from the same layers.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.utils import WeightsMapper

from encoder_plugins.backbones.elementwise import LayerNorm, add, gated, rotation
from encoder_plugins.backbones.modernbert_settings import Settings
from encoder_plugins.backbones.plain_attention import plain_attention
from encoder_plugins.backbones.rotary_settings import LOCAL


class ModernBertEmbeddings(nn.Module):
    """Words and their norm; positions enter with the attention."""

    def __init__(self, settings: Settings, *, prefix: str) -> None:
        super().__init__()
        self.tok_embeddings = VocabParallelEmbedding(
            settings.vocabulary, settings.hidden_size, prefix=f"{prefix}.tok_embeddings"
        )
        self.norm = LayerNorm(settings.hidden_size, settings.epsilon, bias=settings.norm_bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Normalise `[tokens, hidden]` rows of the vocabulary."""
        rows: Tensor = self.norm(embeddings)
        return rows


class ModernBertAttention(nn.Module):
    """Rotary self-attention, global or with a window."""

    def __init__(self, settings: Settings, kind: str, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        heads = settings.heads // get_tensor_model_parallel_world_size()
        self.Wqkv = QKVParallelLinear(
            settings.hidden_size,
            settings.head_size,
            settings.heads,
            bias=settings.attention_bias,
            quant_config=quant_config,
            prefix=f"{prefix}.Wqkv",
        )
        self.rotation = rotation(heads, settings.head_size, theta=settings.thetas[kind], positions=settings.positions)
        self.attention = plain_attention(
            heads,
            settings.head_size,
            settings.head_size**-0.5,
            window=settings.window if kind == LOCAL else None,
            longest=settings.positions,
            prefix=f"{prefix}.attention",
        )
        self.Wo = RowParallelLinear(
            settings.hidden_size,
            settings.hidden_size,
            bias=settings.attention_bias,
            quant_config=quant_config,
            prefix=f"{prefix}.Wo",
        )

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.rotation(positions, self.Wqkv(hidden)[0])  # [tokens, heads * head_size] each
        attended: Tensor = self.Wo(self.attention(query, key, value))[0]
        return attended


class ModernBertLayer(nn.Module):
    """Attention and gated feed-forward, each preceded by its norm, except the first layer's attention."""

    def __init__(self, settings: Settings, index: int, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        hidden, inner = settings.hidden_size, settings.intermediate_size
        self.attn_norm = LayerNorm(hidden, settings.epsilon, bias=settings.norm_bias) if index else None
        self.attn = ModernBertAttention(settings, settings.layer_types[index], quant_config, prefix=f"{prefix}.attn")
        self.mlp_norm = LayerNorm(hidden, settings.epsilon, bias=settings.norm_bias)
        self.Wi = MergedColumnParallelLinear(
            hidden, [inner] * 2, bias=settings.mlp_bias, quant_config=quant_config, prefix=f"{prefix}.Wi"
        )
        self.activation = gated("gelu")
        self.Wo = RowParallelLinear(
            inner, hidden, bias=settings.mlp_bias, quant_config=quant_config, prefix=f"{prefix}.Wo"
        )

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        normed = hidden if self.attn_norm is None else self.attn_norm(hidden)
        hidden = add(hidden, self.attn(normed, positions))
        inner = self.activation(self.Wi(self.mlp_norm(hidden))[0])
        return add(hidden, self.Wo(inner)[0])


class ModernBertAdapters(SupportsLoRA):  # type: ignore[misc]
    """LoRA adapters of a model with this encoder: PEFT's, of any linear layer, by their names in transformers.

    Beside requests with an adapter, vLLM 0.32 on a CPU applies the adapter in its last slot to those without one: ``serving.command``
    starts it with a slot more than there are adapters.
    """

    # these layers are one matrix in the checkpoint, so that an adapter has one pair of matrices for each
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {"Wqkv": ["Wqkv"], "Wi": ["Wi"]}
    hf_to_vllm_mapper: ClassVar[WeightsMapper] = WeightsMapper(
        orig_to_new_prefix={
            # of the encoder alone, and of a GLiNER model
            "layers.": "encoder.layers.",
            "token_rep_layer.bert_layer.model.layers.": "encoder.layers.",
        },
        orig_to_new_substr={".mlp.": "."},
    )


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class ModernBertEncoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        settings = Settings.read(vllm_config.model_config.hf_config)
        self.embeddings = ModernBertEmbeddings(settings, prefix=f"{prefix}.embeddings")
        self.layers = nn.ModuleList(
            ModernBertLayer(settings, index, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(len(settings.layer_types))
        )
        self.final_norm = LayerNorm(settings.hidden_size, settings.epsilon, bias=settings.norm_bias)

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, hidden]`."""
        rows: Tensor = self.embeddings.tok_embeddings(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        hidden = self.embeddings(self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds)
        for layer in self.layers:
            hidden = layer(hidden, positions)
        normed: Tensor = self.final_norm(hidden)
        return normed
