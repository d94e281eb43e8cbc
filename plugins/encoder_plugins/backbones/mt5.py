"""The encoder of mT5 (Xue et al., 2021, arXiv 2010.11934), equal to transformers' ``T5EncoderModel`` with an mT5 configuration.

Scores are not scaled. Their bias depends on the bucket of the distance; all layers use the first layer's table.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_plugins.backbones.attention import RelativeBiasAttention
from encoder_plugins.backbones.bias_table import BiasTable
from encoder_plugins.backbones.elementwise import gated, rms_norm
from encoder_plugins.backbones.mt5_settings import Settings, check_dtype


class Mt5Layer(nn.Module):
    """Attention and gated feed-forward, each preceded by its norm."""

    def __init__(self, settings: Settings, table: BiasTable, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        width = settings.heads * settings.head_size
        self.attention_norm = rms_norm(settings.hidden_size, settings.epsilon)
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
            # a function, so that the table does not become a submodule of every layer
            bias=table.by_distance,
            prefix=f"{prefix}.attention",
        )
        self.o_proj = RowParallelLinear(
            width, settings.hidden_size, bias=False, quant_config=quant_config, prefix=f"{prefix}.o_proj"
        )
        self.feed_forward_norm = rms_norm(settings.hidden_size, settings.epsilon)
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
        """Take and return a branch and the residual that it will be added to, `[tokens, hidden]` each."""
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
        check_dtype(str(vllm_config.model_config.dtype).removeprefix("torch."))
        settings = Settings.read(vllm_config.model_config.hf_config)
        self.shared = VocabParallelEmbedding(settings.vocabulary, settings.hidden_size, prefix=f"{prefix}.shared")
        self.relative = BiasTable(settings.buckets, settings.heads, settings.max_distance)
        self.layers = nn.ModuleList(
            Mt5Layer(settings, self.relative, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(settings.layers)
        )
        self.final_norm = rms_norm(settings.hidden_size, settings.epsilon)

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, hidden]`."""
        rows: Tensor = self.shared(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given. Positions are not used."""
        del positions
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        normed: Tensor = self.final_norm(hidden, residual)[0]
        return normed
