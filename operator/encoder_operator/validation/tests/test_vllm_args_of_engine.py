"""What we say of vLLM against the installed one: a new version may bring new arguments, short forms, and ways to load code, and take
others away.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import Serving
from encoder_operator.validation import vllm_args

pytestmark = pytest.mark.engine

# the operator must not import vLLM
_PRINT = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
print(json.dumps({
    "options": [action.option_strings for action in make_arg_parser(FlexibleArgumentParser())._actions],
    "dtype": [*STR_DTYPE_TO_TORCH_DTYPE],
    "quantization": [*QUANTIZATION_METHODS],
    "loadFormat": {name: loader.__name__ for name, loader in _LOAD_FORMAT_TO_MODEL_LOADER.items()},
}))
"""
# of other versions and other commands; kept, since somebody may try them
_ELSEWHERE = {"model-tag", "task"}
# they sound like it, and only choose between what vLLM itself brings
_HARMLESS = {
    "max-lora-cls-labels",
    "mm-processor-cache-gb",
    "mm-processor-cache-type",
    "mm-processor-device",
    "mm-processor-kwargs",
}


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _PRINT], capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture
def options(vllm: dict[str, Any]) -> list[list[str]]:
    return [names for names in vllm["options"] if names]


def test_every_denied_argument_is_one(options: list[list[str]]) -> None:
    known = {name.removeprefix("--") for names in options for name in names}
    assert set(vllm_args.DENIED) - known == _ELSEWHERE


def test_short_forms_are_denied_with_the_long_ones_and_only_those(options: list[list[str]]) -> None:
    found = {
        name.removeprefix("-"): next(other.removeprefix("--") for other in names if other.startswith("--"))
        for names in options
        for name in names
        if not name.startswith("--")
    }
    assert dict(vllm_args.SHORT_OPTIONS) == {
        short: option for short, option in found.items() if option in vllm_args.DENIED
    }


def test_whatever_sounds_like_code_or_an_open_door_is_denied(options: list[list[str]]) -> None:
    sounds = re.compile(
        r"plugin|cls|middleware|processor|executor|class|remote-code|uds|ssl-|transfer|-host|-port|^port|url"
    )
    found = {name for names in options for name in names if name.startswith("--") and not name.startswith("--no-")}
    heard = {name.removeprefix("--") for name in found if sounds.search(name.removeprefix("--"))}
    assert {name for name in heard if not vllm_args.denied_option(f"--{name}")} == _HARMLESS & heard
    assert len(heard) > 10


def test_argument_values_exist_in_vllm(vllm: dict[str, Any]) -> None:
    """Fields of ours whose values are passed on as they are."""
    fields = Serving.model_json_schema()["properties"]
    ours = {name: _values(fields[name]) for name in ("dtype", "quantization", "loadFormat")}
    assert ours["dtype"] == ["float32", "bfloat16", "float16"]
    assert set(ours["dtype"]) <= set(vllm["dtype"])
    assert ours["quantization"] == ["fp8"]
    assert set(ours["quantization"]) <= set(vllm["quantization"])
    # each by the loader that its description speaks of; tensorizer has one too, and is refused for what that reads
    assert {name: vllm["loadFormat"].get(name) for name in ours["loadFormat"]} == {
        "auto": "DefaultModelLoader",
        "safetensors": "DefaultModelLoader",
        "fastsafetensors": "DefaultModelLoader",
        "runai_streamer": "RunaiModelStreamerLoader",
        "tensorizer": "TensorizerLoader",
    }


def _values(field: dict[str, Any]) -> list[str]:
    return [value for kind in field.get("anyOf", [field]) for value in kind.get("enum", [kind.get("const")]) if value]
