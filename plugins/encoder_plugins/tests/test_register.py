"""What vLLM's two entry points do: in any process, any number of times, and with any vLLM."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from encoder_plugins import catalog, compatibility

# vLLM imports torch by itself: what our side brings shows only beside a stand-in that has the version and the registry
STAND_IN = """
import json, sys, types
vllm = types.ModuleType("vllm")
vllm.__version__ = sys.argv[1]
class ModelRegistry:
    calls = []
    @classmethod
    def register_model(cls, architecture, model):
        cls.calls.append((architecture, model))
vllm.ModelRegistry = ModelRegistry
sys.modules["vllm"] = vllm
import encoder_plugins
for _ in range(int(sys.argv[2])):
    encoder_plugins.register()
heavy = {"torch", "triton", "transformers", "numpy", "pydantic", "tokenizers", "safetensors"}
print(json.dumps({
    "calls": ModelRegistry.calls,
    "processor": encoder_plugins.io_processor(),
    "heavy": sorted(heavy & set(sys.modules)),
    "models": sorted(name for name in sys.modules if name.endswith(".model") and name.startswith("encoder_plugins")),
}))
"""
OWN = [pair for plugin in catalog.plugins().values() for pair in plugin.architectures.items()]


def registered(version: str = compatibility.VLLM, times: int = 1, **environment: str) -> tuple[dict[str, Any], str]:
    """Call the entry points in a process of their own; return the result, and standard error."""
    kept = {name: value for name, value in os.environ.items() if name != compatibility.SWITCH}
    command = [sys.executable, "-c", STAND_IN, version, str(times)]
    done = subprocess.run(command, env=kept | environment, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return found | {"calls": [tuple(call) for call in found["calls"]]}, done.stderr


def test_registering_imports_nothing_heavy_and_no_model() -> None:
    found, errors = registered()
    assert found["calls"] == OWN
    assert OWN
    assert (found["heavy"], found["models"], errors) == ([], [], "")
    assert found["processor"] == "encoder_plugins.serving.io_processor.EncoderIOProcessor"


def test_registering_again_changes_nothing() -> None:
    once, twice = registered()[0], registered(times=2)[0]
    assert twice["calls"] == once["calls"] * 2


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0", "0.32.0rc1", "dev"])
def test_with_another_vllm_nothing_is_registered_and_one_line_says_why(version: str) -> None:
    found, errors = registered(version)
    assert (found["calls"], found["processor"]) == ([], None)
    assert errors.splitlines() == [compatibility.refusal(version)]
    assert version in errors
    assert compatibility.VLLM in errors


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.0+cu130"])
def test_a_build_of_the_supported_version_is_the_supported_version(version: str) -> None:
    assert compatibility.refusal(version) is None


@pytest.mark.parametrize("value", ["1", "true", "all", " ON "])
def test_the_kill_switch_turns_everything_off(value: str) -> None:
    found, errors = registered(ENCODER_PLUGINS_DISABLED=value)
    assert (found["calls"], found["processor"], errors) == ([], None, "")


@pytest.mark.parametrize("value", ["", "0", "false", "off"])
def test_the_kill_switch_can_be_off(value: str) -> None:
    assert registered(ENCODER_PLUGINS_DISABLED=value)[0]["calls"] == OWN


def test_the_kill_switch_turns_single_plugins_off() -> None:
    names = [plugin.name for plugin in catalog.plugins().values() if plugin.architectures]
    found, _ = registered(ENCODER_PLUGINS_DISABLED=f" {names[0]} , sentence_transformer,nobody")
    off = {*catalog.get(names[0]).architectures, *catalog.get("sentence_transformer").architectures}
    assert found["calls"] == [call for call in OWN if call[0] not in off]
    assert off
    assert found["processor"] is not None
    environment = {compatibility.SWITCH: f"{names[0]},nobody"}
    assert compatibility.unknown_in_switch(catalog.plugins(), environment) == {"nobody"}
    assert compatibility.disabled(catalog.plugins(), environment) == {names[0]}


# real vLLM, in a process of its own: what it knew before us, what after us, and whether a device was touched
REAL = """
import json, sys
from vllm import ModelRegistry
before = sorted(ModelRegistry.models)
stock = {name: (model.module_name, model.class_name) for name, model in ModelRegistry.models.items()}
from vllm.plugins import load_general_plugins
load_general_plugins()
loaded = sorted(set(ModelRegistry.models) - set(before))
import encoder_plugins
encoder_plugins.register()
import torch
import transformers
print(json.dumps({
    "before": before,
    "loaded": loaded,
    "replaced": [name for name, model in ModelRegistry.models.items()
                 if name in stock and stock[name] != (model.module_name, model.class_name)],
    "ours": {name: f"{model.module_name}:{model.class_name}" for name, model in ModelRegistry.models.items()
             if name not in before},
    "transformers": [name for name in sys.argv[1:] if hasattr(transformers, name)],
    "cuda": torch.cuda.is_initialized(),
    "models": sorted(name for name in sys.modules if name.startswith("encoder_plugins.models.") and name.endswith(".model")),
}))
"""


@pytest.mark.engine
@pytest.mark.parametrize(("allowed", "expected"), [("encoder", dict(OWN)), ("another", {})])
def test_real_vllm_knows_our_architectures_and_none_is_its_own(allowed: str, expected: dict[str, str]) -> None:
    architectures = [architecture for architecture, _ in OWN]
    done = subprocess.run(
        [sys.executable, "-c", REAL, *architectures],
        env=os.environ | {"VLLM_PLUGINS": allowed, "VLLM_LOGGING_LEVEL": "ERROR"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert not set(architectures) & set(found["before"])
    # checkpoints of vLLM's own models, on the same encoders as ours, are served as before
    assert found["replaced"] == []
    assert found["transformers"] == []
    assert found["cuda"] is False
    assert found["models"] == []
    # vLLM's list decides what vLLM calls; the call after it was the test's own
    assert found["loaded"] == sorted(expected)
    assert found["ours"] == dict(OWN)
