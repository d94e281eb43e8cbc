"""Stands for the code that a published checkpoint brings: the same interface and mathematics, in few lines."""

from typing import Any, ClassVar

import torch
from transformers import AutoProcessor, Qwen3VLConfig, Qwen3VLModel
from transformers.modeling_outputs import BaseModelOutput


class Qwen3VLNemotronEmbedConfig(Qwen3VLConfig):  # type: ignore[misc]
    """The published configuration."""

    model_type = "qwen3_vl_nemotron_embed"


class Qwen3VLNemotronEmbedModel(Qwen3VLModel):  # type: ignore[misc]
    """The published model: attention in both directions, and no last norm."""

    config_class = Qwen3VLNemotronEmbedConfig
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = ["lm_head"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.language_model.layers:
            layer.self_attn.is_causal = False

    def process_queries(self, queries: list[str]) -> Any:
        """Return a batch of queries."""
        return self._processor().process_queries(queries)

    def process_documents(self, documents: dict[str, list[Any]]) -> Any:
        """Return a batch of images with texts."""
        return self._processor().process_documents(documents)

    def _processor(self) -> Any:
        return AutoProcessor.from_pretrained(self.config._name_or_path, trust_remote_code=True)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: Any) -> Any:
        """Return rows before any norm."""
        kept: list[torch.Tensor] = []
        last = self.language_model.layers[-1].register_forward_hook(lambda *found: kept.append(found[-1]))
        positions = None
        if "image_grid_thw" in others:
            positions, _ = self.get_rope_index(
                input_ids, mm_token_type_ids=others["mm_token_type_ids"], image_grid_thw=others["image_grid_thw"]
            )
        tokens = input_ids.shape[1]
        try:
            super().forward(
                input_ids=input_ids,
                attention_mask=torch.zeros(1, 1, tokens, tokens, dtype=self.dtype),
                position_ids=positions,
                use_cache=False,
                **{name: value for name, value in others.items() if name != "mm_token_type_ids"},
            )
        finally:
            last.remove()
        return BaseModelOutput(last_hidden_state=kept[0])
