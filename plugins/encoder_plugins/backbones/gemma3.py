"""Gemma 3's text model as a bidirectional encoder (Vera et al., 2025, arXiv 2509.20354), equal to transformers' ``Gemma3TextModel``.

vLLM's own Gemma 3 decides by the name of the architecture whether it is bidirectional, and skips tensors that it does not know. This
one is built from the same layers, behind an architecture of ours, so that checkpoints of vLLM's are served as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_plugins.backbones.elementwise import gated, rms_norm, rotation
from encoder_plugins.backbones.gemma3_settings import Settings, check_bidirectional, check_dtype
from encoder_plugins.backbones.plain_attention import plain_attention
from encoder_plugins.backbones.rotary_settings import LOCAL


class Gemma3Attention(nn.Module):
    """Rotary self-attention of normalised queries and keys, global or with a window."""

    def __init__(self, settings: Settings, kind: str, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        size = settings.head_size
        self.qkv_proj = QKVParallelLinear(
            settings.hidden_size,
            size,
            settings.heads,
            settings.key_heads,
            bias=settings.attention_bias,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        # on this rank; a head of keys that several ranks need is on each of them
        heads, key_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_norm = rms_norm(size, settings.epsilon, unit_offset=True)
        self.k_norm = rms_norm(size, settings.epsilon, unit_offset=True)
        self.rotation = rotation(
            heads,
            size,
            key_heads=key_heads,
            theta=settings.thetas[kind],
            positions=settings.positions,
            epsilon=settings.epsilon,
            unit_offset=True,
        )
        self.attention = plain_attention(
            heads,
            size,
            settings.scale,
            window=settings.window if kind == LOCAL else None,
            longest=settings.positions,
            key_heads=key_heads,
            prefix=f"{prefix}.attention",
        )
        self.o_proj = RowParallelLinear(
            settings.heads * size,
            settings.hidden_size,
            bias=settings.attention_bias,
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.rotation(positions, self.qkv_proj(hidden)[0], self.q_norm, self.k_norm)
        attended: Tensor = self.o_proj(self.attention(query, key, value))[0]
        return attended


class Gemma3FeedForward(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, settings: Settings, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        hidden, inner = settings.hidden_size, settings.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden, [inner] * 2, bias=False, quant_config=quant_config, prefix=f"{prefix}.gate_up_proj"
        )
        self.activation = gated("gelu_tanh")
        self.down_proj = RowParallelLinear(
            inner, hidden, bias=False, quant_config=quant_config, prefix=f"{prefix}.down_proj"
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        rows: Tensor = self.down_proj(self.activation(self.gate_up_proj(hidden)[0]))[0]
        return rows


class Gemma3Layer(nn.Module):
    """Attention and feed-forward, each between two norms."""

    def __init__(self, settings: Settings, index: int, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        self.self_attn = Gemma3Attention(
            settings, settings.layer_types[index], quant_config, prefix=f"{prefix}.self_attn"
        )
        self.mlp = Gemma3FeedForward(settings, quant_config, prefix=f"{prefix}.mlp")
        self.input_layernorm = rms_norm(settings.hidden_size, settings.epsilon, unit_offset=True)
        self.post_attention_layernorm = rms_norm(settings.hidden_size, settings.epsilon, unit_offset=True)
        self.pre_feedforward_layernorm = rms_norm(settings.hidden_size, settings.epsilon, unit_offset=True)
        self.post_feedforward_layernorm = rms_norm(settings.hidden_size, settings.epsilon, unit_offset=True)

    def forward(self, hidden: Tensor, residual: Tensor | None, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Take and return a branch and the residual that it will be added to, `[tokens, hidden]` each."""
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.post_attention_layernorm(self.self_attn(hidden, positions))
        hidden, residual = self.pre_feedforward_layernorm(hidden, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden)), residual


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class Gemma3Encoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        check_dtype(str(vllm_config.model_config.dtype).removeprefix("torch."))
        settings = Settings.read(vllm_config.model_config.hf_config)
        check_bidirectional(settings)
        self.embed_tokens = VocabParallelEmbedding(
            settings.vocabulary, settings.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        # in the model's dtype: transformers rounds the factor, too
        self.register_buffer("factor", torch.tensor(settings.hidden_size**0.5), persistent=False)
        self.layers = nn.ModuleList(
            Gemma3Layer(settings, index, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(len(settings.layer_types))
        )
        self.norm = rms_norm(settings.hidden_size, settings.epsilon, unit_offset=True)

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, scaled, `[tokens, hidden]`."""
        rows: Tensor = self.embed_tokens(input_ids) * self.factor
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, positions)
        normed: Tensor = self.norm(hidden, residual)[0]
        return normed
