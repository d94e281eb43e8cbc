"""What kernels of a profile belong together."""

from __future__ import annotations

import pytest

from encoder_bench.device_parts import OTHER, Kernel, kind, table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("disentangled_attention_kernel", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90", "attention"),
        ("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_bias_TNT", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("pair_products_kernel", "span and token scores"),
        ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t", "matrix products"),
        ("triton_red_fused__to_copy_abs_amax_clamp_cutlass_scaled_mm_div_mul_reciprocal_silu", "rounding to 8 bits"),
        ("gated_linear_unit_kernel", "activation or gate"),
        ("lstm_kernel", "LSTM"),
        ("triton_per_fused_add_native_layer_norm_0", "norm"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add", OTHER),
    ],
)
def test_the_kind_of_a_kernel(name: str, expected: str) -> None:
    assert kind(name) == expected


def test_both_tables_are_of_one_item() -> None:
    kernels = [
        Kernel("nvjet|a", 4, 600.0),
        Kernel("nvjet b", 4, 200.0),
        Kernel("gelu_kernel", 8, 240.0),
        Kernel("fill", 2, 160.0),
    ]
    lines = list(table(kernels, 8, "text", 0.002, 2))
    assert lines[3:8] == [
        "| matrix products | 100.0 | 66.7% | 1.00 |",
        "| activation or gate | 30.0 | 20.0% | 1.00 |",
        "| other elementwise | 20.0 | 13.3% | 0.25 |",
        "| all | 150.0 | | 2.25 |",
        "| from request to answer, without the profiler | 250.0 | | |",
    ]
    assert lines[-2:] == [
        "| `nvjet a` | 75.0 | 0.50 | matrix products |",
        "| `gelu_kernel` | 30.0 | 1.00 | activation or gate |",
    ]
