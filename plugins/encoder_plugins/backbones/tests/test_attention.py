"""The attention layer's own rules, and vLLM's side of the seam as we found it."""

from __future__ import annotations

import inspect
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
    from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder, CommonAttentionMetadata
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from encoder_plugins.backbones.attention import (
        EncoderAttention,
        EncoderBackend,
        EncoderImpl,
        PlainAttention,
        RelativeBiasAttention,
        VarlenMetadata,
        VarlenMetadataBuilder,
    )
    from encoder_plugins.backbones.plain_attention import NativeAttention, plain_attention

pytestmark = pytest.mark.filterwarnings("ignore")


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_vllm_calls_an_implementation_as_ours_is_called() -> None:
    assert parameters(EncoderImpl.forward) == parameters(AttentionImpl.forward)
    assert parameters(EncoderImpl.__init__) == parameters(AttentionImpl.__init__)
    assert parameters(VarlenMetadataBuilder.build) == parameters(AttentionMetadataBuilder.build)
    assert parameters(VarlenMetadataBuilder.__init__) == parameters(AttentionMetadataBuilder.__init__)


def test_vllm_takes_a_backend_of_ours() -> None:
    assert {"attn_backend", "attn_type", "prefix"} <= set(parameters(Attention.__init__))
    # vLLM looks the name up, and has one for backends that are not its own
    assert EncoderBackend.get_name() in AttentionBackendEnum.__members__
    assert not EncoderBackend.validate_configuration(
        head_size=48,
        dtype=torch.float32,
        kv_cache_dtype="auto",
        block_size=16,
        use_mla=False,
        has_sink=False,
        use_sparse=False,
        use_mm_prefix=False,
        use_per_head_quant_scales=False,
        device_capability=None,
        attn_type="encoder_only",
    )
    assert EncoderBackend.supports_attn_type("encoder_only")
    assert not EncoderBackend.supports_attn_type("decoder")


def test_vllm_reports_where_sequences_begin() -> None:
    assert {"query_start_loc", "query_start_loc_cpu", "num_reqs", "max_query_len"} <= {
        *CommonAttentionMetadata.__dataclass_fields__
    }


def test_metadata_leave_out_what_lies_behind_the_requests() -> None:
    # vLLM's second runner hands over its whole buffer
    starts = torch.tensor([0, 3, 4, 9, 9, 9], dtype=torch.int32)
    common = SimpleNamespace(query_start_loc=starts, query_start_loc_cpu=starts, num_reqs=3, max_query_len=5)
    metadata = VarlenMetadataBuilder(None, [], None, torch.device("cpu")).build(0, common)
    assert metadata.cu_seqlens.tolist() == [0, 3, 4, 9]
    assert (metadata.max_seqlen, metadata.tokens) == (5, 9)


def implementation(heads: int = 2, size: int = 8, **more: Any) -> EncoderImpl:
    return EncoderImpl(heads, size, 1.0, **more)


@pytest.fixture
def layer(world: None) -> EncoderAttention:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        made = RelativeBiasAttention(2, 8, bias=lambda: torch.randn(2, 9), prefix="x")
    assert is_deferred_attention_layer(made)
    made.process_weights_after_loading(torch.float32)
    return made


def test_a_profile_run_has_no_sequences(layer: EncoderAttention) -> None:
    output = torch.full((5, 2, 8), torch.nan)
    nothing = torch.zeros(5, 2, 8)
    assert layer.impl.forward(layer, nothing, nothing, nothing, torch.empty(0), None, output) is output
    assert (output == 0).all()


def test_rows_of_padding_are_never_nan(layer: EncoderAttention) -> None:
    query, key, value = torch.randn(3, 9, 2, 8)
    alone, padded = torch.full((2, 9, 2, 8), torch.nan)
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    metadata = VarlenMetadata(starts, 4, 6)
    layer.impl.forward(layer, query, key, value, torch.empty(0), metadata, padded)
    layer.impl.forward(layer, query[:6], key[:6], value[:6], torch.empty(0), metadata, alone[:6])
    assert (padded[6:] == 0).all()
    torch.testing.assert_close(padded[:6], alone[:6])


@pytest.mark.parametrize(
    "arguments",
    [
        {"alibi_slopes": [1.0]},
        {"sliding_window": 3},
        {"logits_soft_cap": 1.0},
        {"kv_sharing_target_layer_name": "y"},
        {"attn_type": "decoder"},
        {"num_kv_heads": 3},
    ],
    ids=str,
)
def test_what_the_kernels_do_not_do_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        implementation(**arguments)


@pytest.mark.parametrize(
    ("head_size", "window", "longest", "faster"),
    [(64, None, 1024, True), (64, None, 1025, False), (64, 8, 9000, True), (128, None, 64, False), (128, 8, 64, False)],
)
def test_our_kernel_is_used_on_a_gpu_where_it_is_the_faster_one(
    head_size: int, window: int | None, longest: int, faster: bool, our_attention: bool, vllm_config: Any
) -> None:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(vllm_config):
        made = plain_attention(2, head_size, 0.5, window=window, longest=longest, key_heads=1, prefix="x")
    assert isinstance(made, PlainAttention if faster and our_attention else NativeAttention)
    assert (made.window, made.scale, made.num_kv_heads) == (window, 0.5, 1)
