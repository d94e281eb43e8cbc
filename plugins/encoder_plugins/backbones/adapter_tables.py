"""LoRA adapters of DeBERTa: the tables of relative positions come from weights that an adapter changes, so each adapter has its own.

An adapter's tables are computed once, when vLLM puts it into a slot, as those of the model are when it is loaded. vLLM has no event for
that; it does call every layer that it knows to have adapters, in the order in which they were registered. The layers with tables are
registered behind all others: an adapter has no weights by their names, so that each is called to forget what it has for the slot, when
the matrices of the slot are those of the adapter.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.models.interfaces import SupportsLoRA
from vllm.model_executor.models.utils import WeightsMapper

from encoder_plugins.backbones.attention import DisentangledAttention, VarlenMetadata


def added(linear: nn.Module | None, part: int, rows: Tensor, slot: int) -> Tensor | None:
    """Return what the adapter in ``slot`` adds to a part of a layer's output, `[rows, outputs]` float32; None where it takes no adapters.

    Args:
        linear: The layer.
        part: Which of its fused parts.
        rows: `[rows, inputs]`: the layer's input.
        slot: The adapter's slot.
    """
    if not isinstance(linear, BaseLayerWithLoRA):
        return None
    down, up = (stacked[part][slot, 0].float() for stacked in (linear.lora_a_stacked, linear.lora_b_stacked))
    result: Tensor = rows.float() @ down.T @ up.T
    return result


class AdapterTables(BaseLayerWithLoRA):  # type: ignore[misc]
    """What vLLM calls when an adapter comes into a slot."""

    def __init__(self, attention: DisentangledAttention) -> None:
        super().__init__()
        self._set = attention.set_adapter

    def reset_lora(self, index: int) -> None:
        """Compute the tables of the adapter in the slot ``index``."""
        self._set(index)


class TableOfSequence:
    """Which table each sequence of a batch reads, by the adapter of its first token. All layers share one, which computes it once a batch.

    Args:
        slots: Slots of adapters.
        adapters: vLLM's object that knows the slot of every token of the batch.
    """

    def __init__(self, slots: int, adapters: Any) -> None:
        self._slots = slots
        self._adapters = adapters
        self._last: tuple[VarlenMetadata | None, Tensor] = (None, torch.empty(0))

    def __call__(self, metadata: VarlenMetadata) -> Tensor:
        """Return `[sequences]` int32: 0 for none, above it the slots."""
        if self._last[0] is not metadata:
            # -1 for none
            slots = self._adapters.token_lora_indices
            # a sequence behind the last token is empty; batches that vLLM makes up have slots of an earlier batch, or of none
            first = metadata.cu_seqlens[:-1].clamp(max=len(slots) - 1)
            self._last = (metadata, (slots[first] + 1).clamp(0, self._slots).int())
        return self._last[1]


class DebertaV2Adapters(SupportsLoRA):  # type: ignore[misc]
    """LoRA adapters of a model with a DeBERTa v2 or v3 encoder: PEFT's, of any linear layer, by their names in transformers.

    Beside requests with an adapter, vLLM 0.32 on a CPU applies the adapter in its last slot to those without one: ``serving.command``
    starts it with a slot more than there are adapters.
    """

    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {"qkv_proj": ["query_proj", "key_proj", "value_proj"]}
    hf_to_vllm_mapper: ClassVar[WeightsMapper] = WeightsMapper(
        orig_to_new_substr={
            ".attention.self.": ".attention.",
            ".attention.output.dense.": ".attention.dense.",
            ".intermediate.dense.": ".intermediate.",
            ".output.dense.": ".output.",
        },
        orig_to_new_prefix={
            # of the encoder alone, of a GLiNER2 and of a GLiNER model
            "encoder.layer.": "encoder.layers.",
            "encoder.encoder.layer.": "encoder.layers.",
            "token_rep_layer.bert_layer.model.encoder.layer.": "encoder.layers.",
        },
    )

    @property
    def lora_manager(self) -> Any:
        """What vLLM keeps the adapters with; None where there are none."""
        return self.__dict__.get("_lora_manager")

    @lora_manager.setter
    def lora_manager(self, manager: Any) -> None:
        """Register the layers with tables. vLLM sets this once, when all linear layers can have adapters."""
        self.__dict__["_lora_manager"] = manager
        attentions = {
            name: layer for name, layer in manager.model.named_modules() if isinstance(layer, DisentangledAttention)
        }
        adapters = next(layer.punica_wrapper for layer in manager.modules.values())
        table_of = TableOfSequence(manager.lora_slots, adapters)
        for name, attention in attentions.items():
            attention.keep_adapters(manager.lora_slots, table_of)
            manager.register_module(f"{name}.tables", AdapterTables(attention))
