"""The encoder of mT5 (Xue et al., 2021, arXiv 2010.11934), equal to transformers' ``T5EncoderModel`` with an mT5 configuration.

Scores are not scaled. Their bias depends on the distance, by buckets, and is the first layer's in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_kernels.relative_bias_attention import t5_bias
from encoder_plugins.backbones.attention import RelativeBiasAttention
from encoder_plugins.backbones.config_checks import SwitchError, require
from encoder_plugins.backbones.elementwise import gated
from encoder_plugins.backbones.weight_loading import Layout, Place, Shape


@dataclass(frozen=True, slots=True)
class Settings:
    """An mT5 configuration, as far as its encoder goes.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        head_size: Width of a head; heads * head_size need not be the hidden size.
        layers: Encoder layers.
        vocabulary: Rows of the vocabulary.
        epsilon: Of all norms.
        buckets: Rows of the bias table.
        max_distance: From which on all distances share the last bucket.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    head_size: int
    layers: int
    vocabulary: int
    epsilon: float
    buckets: int
    max_distance: int

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read an ``MT5Config``.

        Raises:
            SwitchError: A switch has a value that would change the result, and is not honoured.
        """
        # "gated-gelu" is the tanh form, whatever its name says
        require(config, "feed_forward_proj", ("gated-gelu",))
        require(config, "is_decoder", (False,), default=False)
        return cls(
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            heads=config.num_heads,
            head_size=config.d_kv,
            layers=config.num_layers,
            vocabulary=config.vocab_size,
            epsilon=config.layer_norm_epsilon,
            buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Raise SwitchError for a number format that can't hold what the feed-forward blocks compute."""
    if dtype == torch.float16:
        raise SwitchError(
            "mt5: dtype=float16 is not supported: numbers in the feed-forward blocks exceed its largest, 65504, "
            "and become infinite; accepted: bfloat16, float32"
        )


class BiasTable(nn.Module):
    """The bias of each bucket and head; replicated, and each rank takes its heads."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.max_distance = settings.max_distance
        self.embeddings = nn.Embedding(settings.buckets, settings.heads)

    def by_distance(self) -> Tensor:
        """Return `[heads of this rank, 2 * limit + 1]` float32."""
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        heads = self.embeddings.embedding_dim // ranks
        return t5_bias(self.embeddings.weight[:, rank * heads : (rank + 1) * heads], max_distance=self.max_distance)


class Mt5Layer(nn.Module):
    """Attention and gated feed-forward, each with its norm before."""

    def __init__(self, settings: Settings, table: BiasTable, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        width = settings.heads * settings.head_size
        self.attention_norm = RMSNorm(settings.hidden_size, settings.epsilon)
        self.qkv_proj = QKVParallelLinear(
            settings.hidden_size,
            settings.head_size,
            settings.heads,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.attention = RelativeBiasAttention(
            settings.heads // get_tensor_model_parallel_world_size(),
            settings.head_size,
            # a method, so that the table does not become a part of every layer
            bias=table.by_distance,
            prefix=f"{prefix}.attention",
        )
        self.o_proj = RowParallelLinear(
            width, settings.hidden_size, bias=False, quant_config=quant_config, prefix=f"{prefix}.o_proj"
        )
        self.feed_forward_norm = RMSNorm(settings.hidden_size, settings.epsilon)
        self.gate_up_proj = MergedColumnParallelLinear(
            settings.hidden_size,
            [settings.intermediate_size] * 2,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.activation = gated("gelu_tanh")
        self.down_proj = RowParallelLinear(
            settings.intermediate_size,
            settings.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.down_proj",
        )

    def forward(self, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take and return a branch and the stream it will be added to, `[tokens, hidden]` each."""
        if residual is None:
            hidden, residual = self.attention_norm(hidden), hidden
        else:
            hidden, residual = self.attention_norm(hidden, residual)
        query, key, value = self.qkv_proj(hidden)[0].chunk(3, dim=-1)  # [tokens, heads * head_size] each
        hidden, _ = self.o_proj(self.attention(query, key, value))
        hidden, residual = self.feed_forward_norm(hidden, residual)
        hidden, _ = self.down_proj(self.activation(self.gate_up_proj(hidden)[0]))
        return hidden, residual


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class Mt5Encoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        check_dtype(vllm_config.model_config.dtype)
        settings = Settings.read(vllm_config.model_config.hf_config)
        self.shared = VocabParallelEmbedding(settings.vocabulary, settings.hidden_size, prefix=f"{prefix}.shared")
        self.relative = BiasTable(settings)
        self.layers = nn.ModuleList(
            Mt5Layer(settings, self.relative, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(settings.layers)
        )
        self.final_norm = RMSNorm(settings.hidden_size, settings.epsilon)

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, hidden]`."""
        rows: Tensor = self.shared(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; either of ``input_ids`` and ``inputs_embeds`` is there. Positions are not needed."""
        del positions
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        normed: Tensor = self.final_norm(hidden, residual)[0]
        return normed


def layout(config: Any) -> Layout:
    """Return what a checkpoint of transformers' ``T5EncoderModel`` holds."""
    return Layout(
        shapes=_shapes(Settings.read(config)),
        place=place,
        # transformers ties the two, and writes either or both
        aliases={"encoder.embed_tokens.weight": "shared.weight"},
    )


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, width, inner = settings.hidden_size, settings.heads * settings.head_size, settings.intermediate_size
    shapes: dict[str, Shape] = {
        "shared.weight": (settings.vocabulary, hidden),
        "encoder.final_layer_norm.weight": (hidden,),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (settings.buckets, settings.heads),
    }
    for index in range(settings.layers):
        block = f"encoder.block.{index}.layer"
        for name in "qkv":
            shapes[f"{block}.0.SelfAttention.{name}.weight"] = (width, hidden)
        shapes[f"{block}.0.SelfAttention.o.weight"] = (hidden, width)
        shapes[f"{block}.0.layer_norm.weight"] = (hidden,)
        shapes[f"{block}.1.DenseReluDense.wi_0.weight"] = (inner, hidden)
        shapes[f"{block}.1.DenseReluDense.wi_1.weight"] = (inner, hidden)
        shapes[f"{block}.1.DenseReluDense.wo.weight"] = (hidden, inner)
        shapes[f"{block}.1.layer_norm.weight"] = (hidden,)
    return shapes


# below "encoder.block.N.layer."
_LAYER = {
    "0.SelfAttention.q.weight": Place("qkv_proj.weight", "q"),
    "0.SelfAttention.k.weight": Place("qkv_proj.weight", "k"),
    "0.SelfAttention.v.weight": Place("qkv_proj.weight", "v"),
    "0.SelfAttention.o.weight": Place("o_proj.weight"),
    "0.layer_norm.weight": Place("attention_norm.weight"),
    "1.DenseReluDense.wi_0.weight": Place("gate_up_proj.weight", 0),
    "1.DenseReluDense.wi_1.weight": Place("gate_up_proj.weight", 1),
    "1.DenseReluDense.wo.weight": Place("down_proj.weight"),
    "1.layer_norm.weight": Place("feed_forward_norm.weight"),
}


def place(name: str) -> Place:
    """Return where the tensor ``name`` of transformers' ``T5EncoderModel`` goes."""
    if name.endswith(".relative_attention_bias.weight"):
        return Place("relative.embeddings.weight")
    if name.startswith("encoder.block."):
        _, _, index, _, rest = name.split(".", 4)
        target, part = _LAYER[rest]
        return Place(f"layers.{index}.{target}", part)
    return Place(name.replace("encoder.final_layer_norm.", "final_norm."))
