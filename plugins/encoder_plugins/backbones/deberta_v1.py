"""DeBERTa v1 (He et al., 2020, arXiv 2006.03654), equal to transformers' ``DebertaModel``.

The layers are v2's: what differs is how a checkpoint has queries, keys and values, and that keys have no bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.config import VllmConfig

from encoder_plugins.backbones import deberta_v1_settings, deberta_v2
from encoder_plugins.backbones.deberta_v1_settings import BY_HEAD
from encoder_plugins.backbones.deberta_v2_settings import Settings

_Loader = Callable[..., None]


class DebertaV1Encoder(deberta_v2.DebertaV2Encoder):
    """The encoder: `[tokens]` ids of a packed batch in, `[tokens, hidden]` out.

    Args:
        vllm_config: The engine's configuration.
        prefix: The encoder's name in the model.
        config: The encoder's own configuration; by default the engine's model's.
    """

    settings_class: ClassVar[type[Settings]] = deberta_v1_settings.Settings

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, config=config)
        for attention in (module for module in self.modules() if isinstance(module, deberta_v2.DebertaV2Attention)):
            # a checkpoint has no bias of keys, and nothing else fills it
            attention.qkv_proj.bias.data.zero_()
            _load_by_head(attention.qkv_proj.weight, attention.settings.heads)


def _load_by_head(weight: nn.Parameter, heads: int) -> None:
    """Let the matrix for queries, keys and values be filled from one that has the rows of each head together."""
    load: _Loader = weight.weight_loader  # type: ignore[attr-defined]

    def load_parts(parameter: nn.Parameter, tensor: Tensor, part: int | str | None = None) -> None:
        if part != BY_HEAD:
            load(parameter, tensor, part)
            return
        # [heads, 3, head_size, hidden]
        for name, rows in zip("qkv", tensor.view(heads, 3, -1, tensor.shape[1]).unbind(1), strict=True):
            load(parameter, rows.flatten(0, 1), name)

    # vLLM's own parameter classes have it as a property
    setattr(weight, "_weight_loader" if hasattr(weight, "_weight_loader") else "weight_loader", load_parts)
