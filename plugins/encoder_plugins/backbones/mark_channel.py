"""Brings the token marks of a batch's requests into the model's forward pass, on both of vLLM's model runners.

vLLM carries one thing per request into ``forward``: the token type ids of cross-encoders, which a request gives compressed
in the ``extra_kwargs`` of its ``PoolingParams`` and the runner spreads over the tokens of the batch. Runner V1 compares
the positions of a request's tokens with the compressed value; a value of a class of ours answers with the number of each
token instead, so the runner spreads those (``TokenMarksUpdate``). Runner V2 lets a model provide its own state, which
keeps the marks of each request and gives the texts of each batch to ``forward`` (``MarkedTextsState``).

In the model, ``TextSeparator`` turns the texts into positions and attention metadata. Nothing here waits for a GPU under V2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec
from vllm.v1.worker.gpu.model_states.encoder_only import EncoderOnlyModelState

from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.attention import EncoderAttention, VarlenMetadata
from encoder_plugins.backbones.token_marks import Ints, Texts, TokenMarks

# vLLM's key in extra_kwargs
_TOKEN_TYPES = "compressed_token_type_ids"


class TokenMarksUpdate(PoolingParamsUpdate):  # type: ignore[misc]
    """What a pooler returns from ``get_pooling_updates``, so that vLLM gives the marks of a request to the model."""

    def apply(self, params: Any) -> None:
        """Add the numbers of the request's tokens to its parameters, where it has marks."""
        super().apply(params)
        if (marks := token_marks.decode(params.extra_kwargs)) is not None:
            params.extra_kwargs[_TOKEN_TYPES] = _NumbersOfTokens(marks)


class _NumbersOfTokens:
    """Stands where vLLM expects the position of the first token of type 1, and gives every token a number of its own."""

    def __init__(self, marks: TokenMarks) -> None:
        self._numbers = torch.from_numpy(token_marks.per_token(marks))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Tensor:
        """Answer the comparison with the positions of the request's tokens, `[tokens]`, by their numbers, int32."""
        del function, types, kwargs
        positions, own = args
        numbers: Tensor = own._numbers
        # marks that do not fit the request do not count
        return numbers if len(numbers) == len(positions) else torch.zeros(len(positions), dtype=torch.int32)


class MarkedTextsState(EncoderOnlyModelState):  # type: ignore[misc]
    """Runner V2's state of our models: gives ``texts`` to ``forward`` where a request of the batch has marks."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._marks: dict[str, TokenMarks] = {}

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Keep the marks of a request."""
        # vLLM's own handling of token type ids is left out: it is for runner V1 that they are set
        super(EncoderOnlyModelState, self).add_request(req_index, new_req_data)
        parameters = new_req_data.pooling_params.extra_kwargs if new_req_data.pooling_params else None
        marks = token_marks.decode(parameters, len(new_req_data.prompt_token_ids or ()))
        if marks is not None:
            self._marks[new_req_data.req_id] = marks

    def remove_request(self, req_id: str) -> None:
        """Forget the marks of a request."""
        super().remove_request(req_id)
        self._marks.pop(req_id, None)

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        """Return what ``forward`` gets beside ids and positions."""
        inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)
        inputs["offsets"] = input_batch.query_start_loc_np[: input_batch.num_reqs + 1]
        if any(request in self._marks for request in input_batch.req_ids):
            counts = input_batch.num_scheduled_tokens[: len(input_batch.req_ids)].tolist()
            marks = [self._marks.get(request) for request in input_batch.req_ids]
            inputs["texts"] = token_marks.of_batch(zip(counts, marks, strict=True))
        return inputs

    def capture_inner_cudagraphs(self, input_buffers: Any, *others: Any) -> None:
        """Capture the graphs that are the model's own."""
        super().capture_inner_cudagraphs(input_buffers, *others)
        if self.vllm_config.lora_config is None:
            # a graph would be of one adapter
            self.model.capture(input_buffers.input_ids, input_buffers.positions)


def texts_of_tokens(numbers: Tensor, positions: Tensor) -> Texts:
    """Return the texts of a batch of runner V1.

    Args:
        numbers: `[tokens]` int32: the numbers of all tokens, 0 for those of requests without marks.
        positions: `[tokens or more]`: each token's position in its request.
    """
    starts = np.flatnonzero(positions[: len(numbers)].cpu().numpy() == 0)
    return token_marks.from_tokens(numbers.cpu().numpy(), starts.astype(np.int32))


class TextSeparator:
    """Makes the attention layers of an encoder treat each text of a batch as a sequence of its own.

    Args:
        encoder: The encoder.
        vllm_config: The engine's configuration.
    """

    def __init__(self, encoder: nn.Module, vllm_config: VllmConfig) -> None:
        self._vllm_config = vllm_config
        layers: dict[str, Any] = {
            layer.layer_name: layer for layer in encoder.modules() if isinstance(layer, Attention)
        }
        self._names = list(layers)
        # layers with a backend of vLLM's, which takes metadata of its own
        self._foreign = {name: layer for name, layer in layers.items() if not isinstance(layer, EncoderAttention)}
        self._builder: AttentionMetadataBuilder[Any] | None = None

    def __call__(self, texts: Texts, positions: Tensor) -> None:
        """Separate the texts of the batch that the current forward pass is for.

        Args:
            texts: All texts of the batch.
            positions: `[tokens or more]`: the tokens' positions in their requests; becomes those in their texts.
        """
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            # a profile run
            return
        offsets, places, keys = _to_device(texts, positions.device)
        tokens = len(places)
        positions[:tokens].copy_(places)
        if keys is None:
            metadata.update(self.metadata(offsets, texts.offsets, positions))
        else:
            metadata.update(dict.fromkeys(self._names, VarlenMetadata(offsets, texts.longest, tokens, keys)))

    def set_positions(self, texts: Texts, positions: Tensor) -> None:
        """Change the tokens' positions in their requests, `[tokens or more]`, to those in their texts."""
        host = torch.from_numpy(texts.positions)
        if positions.is_cuda:
            host = host.pin_memory()
        positions[: len(host)].copy_(host.to(positions.device, non_blocking=True))

    def metadata(self, offsets: Tensor, host: Ints, positions: Tensor) -> dict[str, Any]:
        """Return what every attention layer needs to know of a batch of which all tokens are keys, by the layers' names.

        Args:
            offsets: `[texts + 1]` int32 on the device: the first token of each text, and the end of the last.
            host: The same on the host.
            positions: `[tokens or more]`: each token's position in its text.
        """
        longest, tokens = int(np.diff(host).max(initial=0)), int(host[-1])
        found: dict[str, Any] = dict.fromkeys(self._names, VarlenMetadata(offsets, longest, tokens))
        if self._foreign:
            found.update(dict.fromkeys(self._foreign, self._build(offsets, host, longest, positions)))
        return found

    def _build(self, offsets: Tensor, offsets_on_host: Ints, longest: int, positions: Tensor) -> Any:
        """Return the metadata of vLLM's own backend."""
        if self._builder is None:
            layer = next(iter(self._foreign.values()))
            spec = EncoderOnlyAttentionSpec(
                block_size=self._vllm_config.cache_config.block_size,
                num_kv_heads=layer.num_kv_heads,
                head_size=layer.head_size,
                dtype=layer.dtype,
            )
            builder = layer.get_attn_backend().get_builder_cls()
            self._builder = builder(spec, list(self._foreign), self._vllm_config, positions.device)
        count = len(offsets_on_host) - 1
        host = torch.from_numpy(offsets_on_host)
        common = CommonAttentionMetadata(
            query_start_loc=offsets,
            query_start_loc_cpu=host,
            seq_lens=offsets.diff(),
            seq_lens_cpu_upper_bound=host.diff(),
            num_reqs=count,
            num_actual_tokens=int(offsets_on_host[-1]),
            max_query_len=longest,
            max_seq_len=longest,
            # encoders have no cache; vLLM's CPU attention fills the slots of a temporary one, but those of padding rows
            block_table_tensor=torch.zeros(count, 1, dtype=torch.int32, device=positions.device),
            slot_mapping=torch.full((len(positions),), -1, dtype=torch.int64, device=positions.device),
            causal=False,
            positions=positions,
        )
        return self._builder.build(0, common)


def _to_device(texts: Texts, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return offsets, positions and key lengths on the device, by one copy."""
    parts = [texts.offsets, texts.positions, *([] if texts.keys is None else [texts.keys])]
    host = torch.empty(sum(map(len, parts)), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(parts, out=host.numpy())
    found = torch.split(host.to(device, non_blocking=True), [len(part) for part in parts])
    return found[0], found[1], found[2] if len(found) > 2 else None
