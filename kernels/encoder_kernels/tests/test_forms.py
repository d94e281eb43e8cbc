# mypy: disable-error-code="no-untyped-call"
"""The kernels' other forms: the interpreter, torch.compile, and no Triton where none is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from encoder_kernels.dispatch import INTERPRETED
from encoder_kernels.gated_linear_unit import gated_linear_unit
from encoder_kernels.rotary import rotary

KERNELS = Path(__file__).parents[2]
OPERATIONS = (
    "bidirectional_lstm",
    "disentangled_attention",
    "gated_linear_unit",
    "gelu",
    "relative_bias_attention",
    "rotary",
    "span_scores",
    "token_scores",
)


@pytest.mark.skipif(INTERPRETED, reason="this is the process that the test starts")
def test_kernels_through_the_interpreter() -> None:
    # numpy, which the interpreter computes with, warns of what masked places hold
    folders = [str(KERNELS / "encoder_kernels" / name) for name in OPERATIONS]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not gpu",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::RuntimeWarning",
            *folders,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=KERNELS.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) > 40, run.stdout[-2000:]


def test_importing_everything_leaves_triton_alone() -> None:
    names = ", ".join(f"encoder_kernels.{name}" for name in OPERATIONS)
    code = f"import sys; import torch; before = 'triton' in sys.modules; import {names}; sys.exit('triton' in sys.modules and not before)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": ""}).returncode == 0


@pytest.mark.gpu
# torch's compiler imports a module of torch that still uses what torch deprecates
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_elementwise_kernels_inside_a_compiled_graph() -> None:
    def block(hidden, query, key, positions, frequency):  # type: ignore[no-untyped-def]
        rotary(query, key, positions, frequency)
        return gated_linear_unit(hidden + 1.0, "gelu") * 2.0, query, key

    arguments = [
        torch.randn(40, 256),
        torch.randn(40, 3, 64),
        torch.randn(40, 2, 64),
        torch.arange(40),
        torch.rand(32),
    ]
    expected = block(*(argument.cuda() for argument in arguments))
    actual = torch.compile(block, fullgraph=True)(*(argument.cuda() for argument in arguments))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)
