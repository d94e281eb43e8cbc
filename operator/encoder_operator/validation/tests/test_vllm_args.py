from __future__ import annotations

import re

import pytest

from encoder_operator.validation import vllm_args


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
    assert vllm_args.denied_option(argument)


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
        # a value whose end is a short option's name
        "fq",
        # too short for vLLM, which has several options that begin so
        "--ap",
        "--gpu-memory-utilization",
    ],
)
def test_tuning_is_allowed(argument: str) -> None:
    assert vllm_args.denied_option(argument) is None
    assert not re.search(vllm_args.cel_pattern(), argument)


@pytest.mark.parametrize("tail", ["", "=x", ".a.b=c"])
@pytest.mark.parametrize("name", vllm_args.DENIED)
def test_every_denied_option_is_denied_with_dashes_and_underscores(name: str, tail: str) -> None:
    assert vllm_args.denied_option(f"--{name}{tail}") == name
    assert vllm_args.denied_option(f"--{name.replace('-', '_')}{tail}") == name


@pytest.mark.parametrize("short", vllm_args.SHORT_OPTIONS)
@pytest.mark.parametrize("tail", ["", "=2"])
def test_short_forms_are_denied_as_the_long_ones(short: str, tail: str) -> None:
    assert vllm_args.denied_option(f"-{short}{tail}") in vllm_args.DENIED


@pytest.mark.parametrize("argument", ["--port=9", "--served_model_name", "-tp=2", "--trust-remote-code", "--config=x"])
def test_common_denied_arguments_are_rejected_by_the_api_server(argument: str) -> None:
    assert re.search(vllm_args.cel_pattern(), argument)


@pytest.mark.parametrize("argument", ["--data-parallel-rank=1", "-dpr=1", "--ssl-keyfile=x"])
def test_the_rest_is_left_to_the_operator_because_the_cost_of_a_rule_is_limited(argument: str) -> None:
    assert vllm_args.denied_option(argument)
    assert not re.search(vllm_args.cel_pattern(), argument)
