from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_operator import arguments


@pytest.mark.parametrize(
    "argument",
    [
        "--port",
        "--port=9",
        "--trust-remote-code",
        "--trust_remote_code",
        "--Trust-Remote-Code",
        "--additional-config.encoder.plugin=x",
        "--served-model",
        "--trust",
        "--io_processor_plugin=mine",
        "--middleware",
        "-tp",
        "-tp=2",
        "-q",
        "--load-format=dummy",
        "--weight-transfer-config={}",
    ],
)
def test_denied_in_every_spelling_that_vllm_takes(argument: str) -> None:
    assert arguments.denied(argument)


@pytest.mark.parametrize(
    "argument",
    [
        "--pooler-config",
        '{"pooling_type": "CLS"}',
        "--max-num-seqs=8",
        "--max-num-batched-tokens",
        "-O2",
        "-cc={}",
        "port",
        "--gpu-memory-utilization",
    ],
)
def test_tuning_is_allowed(argument: str) -> None:
    assert arguments.denied(argument) is None


@given(st.sampled_from(sorted(arguments.DENIED)), st.sampled_from(["", "=x", ".a.b=c"]), st.booleans())
def test_what_the_api_server_refuses_the_operator_refuses_too(name: str, tail: str, underscores: bool) -> None:
    argument = f"--{name.replace('-', '_') if underscores else name}{tail}"
    assert re.search(arguments.cel_pattern(), argument)
    assert arguments.denied(argument) is not None


@pytest.mark.parametrize("short", arguments.SHORT)
@pytest.mark.parametrize("tail", ["", "=2"])
def test_short_forms_are_refused_by_the_api_server_and_the_operator(short: str, tail: str) -> None:
    assert re.search(arguments.cel_pattern(), f"-{short}{tail}")
    assert arguments.denied(f"-{short}{tail}") in arguments.DENIED
