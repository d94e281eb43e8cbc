"""A mistake in conversion is never served: each ends in a refusal, or parity says Failed.

The reference is the library's own, recorded from the published files; so a mistake in what ``convert`` writes is on one side of
the comparison only. One engine for each plugin and dtype; its model is exchanged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints.gliner import FURTHER, PLUGINS
from encoder_plugins.families.gliner.tests import conversion_mutants
from encoder_plugins.parity.tests.emulated_fp8 import emulated
from encoder_plugins.parity.tests.served_model import check, start
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

# families of checkpoints, by the plugin that serves them
FAMILIES = {**{name: name for name in PLUGINS}, **FURTHER}
# of the built-in cases: enough to measure every bound, and few enough for a check to take a second
CASES = (
    "short",
    "turkish",
    "scripts",
    "emoji",
    "labels-of-scripts",
    "nested-several-labels",
    "low-threshold",
    "overlong",
)
# with more words, or more labels, than some checkpoints take
LEFT_OUT = ("one-word", "short", "repeated", "many-labels", "long", "overlong")


@pytest.fixture(scope="module", autouse=True)
def variables() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with environment():
        yield


@pytest.mark.parametrize("name", FAMILIES)
def test_ten_mistakes_are_known_of_each_family(name: str) -> None:
    assert len(conversion_mutants.of(name)) >= 10


@pytest.mark.engine
@pytest.mark.parametrize("name", FAMILIES)
def test_no_mistake_in_conversion_passes(name: str, published: Any, tmp_path: Path) -> None:
    check(start(FAMILIES[name], "float32", tmp_path, published(name), CASES), conversion_mutants.of(name))


# `make soak` has every family in bfloat16, with its mistakes
@pytest.mark.engine
@pytest.mark.parametrize("name", PLUGINS)
def test_the_sound_model_passes_in_bfloat16(name: str, published: Any, tmp_path: Path) -> None:
    check(start(FAMILIES[name], "bfloat16", tmp_path, published(name), CASES), [])


def cut_off_early(folder: Path) -> None:
    """Let the tokenizer cut prompts off that have fewer words than the model takes."""
    path = folder / "tokenizer_config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**about, "model_max_length": 96}), encoding="utf-8")


def few_words(folder: Path) -> None:
    """Let the model take fewer words than most built-in cases have."""
    path = folder / "gliner_config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**about, "max_len": 12}), encoding="utf-8")


def without_commas(folder: Path) -> None:
    """Let the tokenizer make no tokens of a comma."""
    path = folder / "tokenizer.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    drop = {"type": "Replace", "pattern": {"String": ","}, "content": ""}
    before = [about["normalizer"]] if about["normalizer"] else []
    about["normalizer"] = {"type": "Sequence", "normalizers": [drop, *before]}
    path.write_text(json.dumps(about), encoding="utf-8")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mmbert_gliner", cut_off_early),
        ("mmbert_gliner", without_commas),
        ("mmbert_gliner", few_words),
        ("gliner_rerank_spans", cut_off_early),
    ],
)
def test_a_model_passes_that_does_not_read_all_words(
    name: str, change: Callable[[Path], None], published: Any, tmp_path: Path
) -> None:
    source = shutil.copytree(published(name), tmp_path / "source")
    change(source)
    check(start(FAMILIES[name], "float32", tmp_path, source, LEFT_OUT), [])


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("name", FAMILIES)
def test_no_mistake_in_conversion_passes_in_bfloat16(name: str, published: Any, tmp_path: Path) -> None:
    check(start(FAMILIES[name], "bfloat16", tmp_path, published(name), CASES), conversion_mutants.of(name))


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("name", PLUGINS)
def test_the_sound_model_passes_with_what_fp8_rounds(name: str, published: Any, tmp_path: Path) -> None:
    served = start(name, "bfloat16", tmp_path, published(name), CASES)
    served.quantization = "fp8"
    with emulated() as rounded:
        check(served, [])
    assert rounded


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_mistake_in_conversion_passes_on_a_gpu(name: str, dtype: str, published: Any, tmp_path: Path) -> None:
    if name == "mt5_gliner" and dtype == "float16":
        pytest.skip("refused in float16: its feed-forward blocks overflow")
    check(start(FAMILIES[name], dtype, tmp_path, published(name), CASES), conversion_mutants.of(name))
