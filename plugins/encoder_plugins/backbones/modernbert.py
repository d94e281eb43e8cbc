"""ModernBERT (Warner et al., 2024, arXiv 2412.13663) and mmBERT, equal to transformers' ``ModernBertModel``.

vLLM's own ModernBERT is exact on one rank, but splits queries, keys and values as if it had all heads, so that it is wrong
with tensor parallelism, and it skips tensors that it does not know. This one is built of the same layers, and of
vLLM's own encoder attention, whose sliding window is the true one: so many tokens to either side, however long the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import EncoderOnlyAttention
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from encoder_plugins.backbones.config_checks import refuse, require
from encoder_plugins.backbones.elementwise import LayerNorm, add, gated, rotation
from encoder_plugins.backbones.weight_loading import Layout, Place, Shape

GLOBAL, LOCAL = "full_attention", "sliding_attention"
# what transformers assumes where a configuration says nothing
DEFAULT_THETA = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
_FLAT = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


@dataclass(frozen=True, slots=True)
class Settings:
    """A ModernBERT configuration, in whichever form it was written.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        vocabulary: Rows of the vocabulary.
        positions: Positions that the rotary tables have.
        epsilon: Of all layer norms.
        norm_bias: Whether layer norms have a bias.
        attention_bias: Whether the attention's projections have one.
        mlp_bias: Whether the feed-forward block has one.
        window: Tokens that a local layer sees to either side.
        layer_types: For each layer, ``full_attention`` or ``sliding_attention``.
        thetas: The rotary base by layer type.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    vocabulary: int
    positions: int
    epsilon: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    window: int
    layer_types: tuple[str, ...]
    thetas: Mapping[str, float]

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``ModernBertConfig``.

        Raises:
            SwitchError: A switch has a value that would change the result, and is not honoured.
        """
        require(config, "hidden_activation", ("gelu",))
        if config.hidden_size % config.num_attention_heads:
            raise refuse(config, "num_attention_heads", f"it must divide hidden_size={config.hidden_size}")
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=int(config.intermediate_size),
            heads=config.num_attention_heads,
            vocabulary=config.vocab_size,
            positions=config.max_position_embeddings,
            epsilon=config.norm_eps,
            norm_bias=config.norm_bias,
            attention_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            window=config.local_attention // 2,
            layer_types=layer_types(config),
            thetas=thetas(config),
        )

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


def layer_types(config: Any) -> tuple[str, ...]:
    """Return each layer's type: as listed, or global at every n-th layer from the first."""
    listed = getattr(config, "layer_types", None)
    if listed is None:
        every = getattr(config, "global_attn_every_n_layers", 3)
        listed = [LOCAL if index % every else GLOBAL for index in range(config.num_hidden_layers)]
    if len(listed) != config.num_hidden_layers or set(listed) - {GLOBAL, LOCAL}:
        raise refuse(
            config, "layer_types", f"it must name {GLOBAL} or {LOCAL} for each of {config.num_hidden_layers} layers"
        )
    return tuple(listed)


def thetas(config: Any) -> dict[str, float]:
    """Return the rotary base by layer type, from the nested form of transformers 5 or the flat one before it.

    A base that is given in both forms is the nested one, as transformers takes it.

    Raises:
        SwitchError: The positions are scaled in some way.
    """
    nested = getattr(config, "rope_parameters", None) or {}
    if unknown := set(nested) - {GLOBAL, LOCAL}:
        raise refuse(config, "rope_parameters", f"{sorted(unknown)} is not one of {GLOBAL}, {LOCAL}")
    return {kind: _theta(config, nested.get(kind) or {}, kind) for kind in (GLOBAL, LOCAL)}


def _theta(config: Any, parameters: Mapping[str, Any], kind: str) -> float:
    plain = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
    scaled = set(parameters) - plain or parameters.get("partial_rotary_factor", 1.0) != 1.0
    if scaled or parameters.get("rope_type", parameters.get("type", "default")) != "default":
        raise refuse(config, "rope_parameters", f"in {kind} only rope_theta is honoured, positions are not scaled")
    return float(parameters.get("rope_theta") or getattr(config, _FLAT[kind], None) or DEFAULT_THETA[kind])


class ModernBertEmbeddings(nn.Module):
    """Words and their norm; positions come with the attention."""

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
        self.attention = EncoderOnlyAttention(
            heads,
            settings.head_size,
            settings.head_size**-0.5,
            # vLLM counts the token itself
            per_layer_sliding_window=settings.window + 1 if kind == LOCAL else None,
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
    """Attention and gated feed-forward, each with its norm before; the first layer has none before its attention."""

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
        """Return `[tokens, hidden]`; either of ``input_ids`` and ``inputs_embeds`` is there."""
        hidden = self.embeddings(self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds)
        for layer in self.layers:
            hidden = layer(hidden, positions)
        normed: Tensor = self.final_norm(hidden)
        return normed


def layout(config: Any) -> Layout:
    """Return what a checkpoint of transformers' ``ModernBertModel`` holds."""
    return Layout(shapes=_shapes(Settings.read(config)), place=place)


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner = settings.hidden_size, settings.intermediate_size
    shapes: dict[str, Shape] = {"embeddings.tok_embeddings.weight": (settings.vocabulary, hidden)}

    def add(name: str, *shape: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    add("embeddings.norm", hidden, bias=settings.norm_bias)
    for index in range(len(settings.layer_types)):
        layer = f"layers.{index}"
        if index:
            add(f"{layer}.attn_norm", hidden, bias=settings.norm_bias)
        add(f"{layer}.attn.Wqkv", 3 * hidden, hidden, bias=settings.attention_bias)
        add(f"{layer}.attn.Wo", hidden, hidden, bias=settings.attention_bias)
        add(f"{layer}.mlp_norm", hidden, bias=settings.norm_bias)
        add(f"{layer}.mlp.Wi", 2 * inner, hidden, bias=settings.mlp_bias)
        add(f"{layer}.mlp.Wo", hidden, inner, bias=settings.mlp_bias)
    add("final_norm", hidden, bias=settings.norm_bias)
    return shapes


def place(name: str) -> Place:
    """Return where the tensor ``name`` of transformers' ``ModernBertModel`` goes."""
    return Place(name.replace(".mlp.", "."))
