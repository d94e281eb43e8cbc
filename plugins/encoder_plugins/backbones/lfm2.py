"""LFM2's text model (Liquid AI, 2025) as an encoder, equal to transformers' ``Lfm2Model``: gated short convolutions and causal attention.

vLLM's own LFM2 keeps the state of each request's convolutions and a cache of its keys, to generate. A retriever needs each
text once, so this one, built from the same layers, computes whole texts from the packed batch alone: nothing is left
behind for the next batch, and a text's rows depend on no other text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_plugins.backbones.attention import PlainAttention, VarlenMetadata
from encoder_plugins.backbones.elementwise import rms_norm, rotation
from encoder_plugins.backbones.lfm2_settings import ATTENTION, Settings


class Lfm2Attention(nn.Module):
    """Causal rotary self-attention of normalised queries and keys."""

    def __init__(self, settings: Settings, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        size = settings.head_size
        self.qkv_proj = QKVParallelLinear(
            settings.hidden_size,
            size,
            settings.heads,
            settings.key_heads,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        # on this rank; a head of keys that several ranks need is on each of them
        heads, key_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_layernorm = rms_norm(size, settings.epsilon)
        self.k_layernorm = rms_norm(size, settings.epsilon)
        self.rotation = rotation(
            heads,
            size,
            key_heads=key_heads,
            theta=settings.theta,
            positions=settings.positions,
            epsilon=settings.epsilon,
        )
        self.attention = PlainAttention(
            heads, size, size**-0.5, causal=True, key_heads=key_heads, prefix=f"{prefix}.attention"
        )
        self.out_proj = RowParallelLinear(
            settings.heads * size,
            settings.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.out_proj",
        )

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        query, key, value = self.rotation(positions, self.qkv_proj(hidden)[0], self.q_layernorm, self.k_layernorm)
        attended: Tensor = self.out_proj(self.attention(query, key, value))[0]
        return attended


class Lfm2Convolution(nn.Module):
    """A short causal convolution for each channel, between two gates."""

    def __init__(self, settings: Settings, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        hidden, bias = settings.hidden_size, settings.convolution_bias
        self.in_proj = MergedColumnParallelLinear(
            hidden, [hidden] * 3, bias=bias, quant_config=quant_config, prefix=f"{prefix}.in_proj"
        )
        # holds the weights, split over ranks by channels; the formula is below
        self.conv = ColumnParallelLinear(settings.taps, hidden, bias=bias, prefix=f"{prefix}.conv")
        self.conv.weight.data = self.conv.weight.data.unsqueeze(1)
        self.out_proj = RowParallelLinear(
            hidden, hidden, bias=bias, quant_config=quant_config, prefix=f"{prefix}.out_proj"
        )

    def forward(self, hidden: Tensor, positions: Tensor, attended: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`; tokens that are queries only enter as zeros."""
        inner, outer, rows = self.in_proj(hidden * attended)[0].chunk(3, dim=-1)
        convolved = convolve(inner * rows, self.conv.weight, self.conv.bias, positions)
        projected: Tensor = self.out_proj(outer * convolved)[0]
        return projected


def convolve(rows: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor) -> Tensor:
    """Convolve each channel over a token and those before it in its text, summed in float32.

    Args:
        rows: `[tokens, channels]` of a packed batch.
        weight: `[channels, 1, taps]`; the last tap is that of the token itself.
        bias: `[channels]`; None for none.
        positions: `[tokens]`: each token's position in its text.

    Returns:
        `[tokens, channels]` in the dtype of ``rows``.
    """
    taps, tokens = weight.squeeze(1).float(), rows.shape[0]
    exact = rows.float()
    total = exact * taps[:, -1]
    for back in range(1, taps.shape[1]):
        before = nn.functional.pad(exact, (0, 0, back, 0))[:tokens]
        # what stands there in the batch is another text where this one has begun later
        before = before * (positions >= back).unsqueeze(-1)
        total = total + before * taps[:, -1 - back]
    if bias is not None:
        total = total + bias.float()
    return total.to(rows.dtype)


class Lfm2FeedForward(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, settings: Settings, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        hidden, inner = settings.hidden_size, settings.intermediate_size
        self.w13 = MergedColumnParallelLinear(
            hidden, [inner] * 2, bias=False, quant_config=quant_config, prefix=f"{prefix}.w13"
        )
        self.activation = SiluAndMul()
        self.w2 = RowParallelLinear(inner, hidden, bias=False, quant_config=quant_config, prefix=f"{prefix}.w2")

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[tokens, hidden]` for `[tokens, hidden]`."""
        rows: Tensor = self.w2(self.activation(self.w13(hidden)[0]))[0]
        return rows


class Lfm2Layer(nn.Module):
    """Attention or convolution, then the feed-forward block, each behind a norm."""

    def __init__(self, settings: Settings, index: int, quant_config: Any, *, prefix: str) -> None:
        super().__init__()
        self.attends = settings.layer_types[index] == ATTENTION
        if self.attends:
            self.self_attn = Lfm2Attention(settings, quant_config, prefix=f"{prefix}.self_attn")
        else:
            self.conv = Lfm2Convolution(settings, quant_config, prefix=f"{prefix}.conv")
        self.operator_norm = rms_norm(settings.hidden_size, settings.epsilon)
        self.ffn_norm = rms_norm(settings.hidden_size, settings.epsilon)
        self.feed_forward = Lfm2FeedForward(settings, quant_config, prefix=f"{prefix}.feed_forward")

    def forward(
        self, hidden: Tensor, residual: Tensor | None, positions: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take and return a branch and the residual that it will be added to, `[tokens, hidden]` each."""
        if residual is None:
            hidden, residual = self.operator_norm(hidden), hidden
        else:
            hidden, residual = self.operator_norm(hidden, residual)
        hidden = self.self_attn(hidden, positions) if self.attends else self.conv(hidden, positions, attended)
        hidden, residual = self.ffn_norm(hidden, residual)
        return self.feed_forward(hidden), residual


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class Lfm2Stack(nn.Module):
    """All layers: what is compiled.

    Attributes:
        attended: `[tokens of the largest batch, 1]`: 1 for each token that others attend to, 0 for those that are queries
            only; 1 everywhere between batches. A buffer, because CUDA graphs read what stands at one address.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        settings = Settings.read(vllm_config.model_config.hf_config)
        self.embed_tokens = VocabParallelEmbedding(
            settings.vocabulary, settings.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        self.layers = nn.ModuleList(
            Lfm2Layer(settings, index, vllm_config.quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(len(settings.layer_types))
        )
        self.embedding_norm = rms_norm(settings.hidden_size, settings.epsilon)
        most_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.attended: Tensor
        self.register_buffer("attended", torch.ones(most_tokens, 1), persistent=False)

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        attended = self.attended[: hidden.shape[0]]
        residual: Tensor | None = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, positions, attended)
        normed: Tensor = self.embedding_norm(hidden, residual)[0]
        return normed


class Lfm2Encoder(nn.Module):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.stack = Lfm2Stack(vllm_config=vllm_config, prefix=f"{prefix}.stack")
        self._attention = next(
            module.layer_name for module in self.stack.modules() if isinstance(module, PlainAttention)
        )

    def embed_input_ids(self, input_ids: Tensor | None) -> Tensor:
        """Return the vocabulary's rows, `[tokens, hidden]`."""
        rows: Tensor = self.stack.embed_tokens(input_ids)
        return rows

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return `[tokens, hidden]`; one of ``input_ids`` and ``inputs_embeds`` is given."""
        marked = self._mark(positions)
        hidden: Tensor = self.stack(input_ids, positions, inputs_embeds)
        if marked:
            # a whole pass that was captured as a graph marks nothing when it is launched again
            self.stack.attended[:marked].fill_(1)
        return hidden

    def _mark(self, positions: Tensor) -> int:
        """Mark the tokens that are queries only for the convolutions; attention has them in its metadata.

        Returns:
            The tokens of a batch with such tokens; 0 for any other.
        """
        metadata = get_forward_context().attn_metadata
        own = metadata.get(self._attention) if isinstance(metadata, dict) else None
        if not isinstance(own, VarlenMetadata) or own.key_lengths is None:
            return 0
        keys = own.key_lengths.repeat_interleave(own.cu_seqlens.diff(), output_size=own.tokens)  # [tokens]
        self.stack.attended[: own.tokens, 0].copy_(positions[: own.tokens] < keys)
        return own.tokens
