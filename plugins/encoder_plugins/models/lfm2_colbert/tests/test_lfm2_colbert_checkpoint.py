"""What prep refuses of a checkpoint on LFM2, what it writes, and which tokens a text becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.errors import PrepareError
from encoder_plugins.families.retrieval.cases import TEXTS
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.retrieval.tokens import TextTokenizer
from encoder_plugins.models.lfm2_colbert.checkpoint import CHECKPOINT
from encoder_plugins.models.lfm2_colbert.tests import tiny

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

ORACLE = "encoder_plugins.families.retrieval.tests.oracle:tokens"


def converted(name: str, folder: Path) -> tuple[Path, Path]:
    """Build and convert a tiny checkpoint; return where both are."""
    published, model = tiny.build(name, folder), folder / "model"
    model.mkdir()
    CHECKPOINT.convert(published, {}, model)
    return published, model


@pytest.mark.parametrize(
    ("file", "changed", "says"),
    [
        ("config.json", {"architectures": ["ModernBertModel"]}, "architectures is .*ModernBertModel.*Lfm2Model"),
        ("config.json", {"architectures": ["Lfm2ColbertModel"]}, "architectures"),
        ("config.json", {"model_type": "lfm2_moe"}, "model_type='lfm2_moe'"),
        ("config.json", {"layer_types": ["conv"] * 5}, "layer_types"),
        ("config.json", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters"),
        ("config.json", {"max_position_embeddings": 40}, "up to 64 tokens, and the encoder only 40 positions"),
        ("config.json", {"conv_L_cache": 4}, r"layers.0.conv.conv.weight is \(64, 1, 3\)"),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side"),
        ("tokenizer_config.json", {"eos_token": None}, "the mask token, which the tokenizer lacks"),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    file: str, changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    published = tiny.build("pylate", tmp_path)
    before = json.loads((published / file).read_text())
    (published / file).write_text(json.dumps({**before, **changed}))
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(published, {}, tmp_path / "model")


def test_a_head_that_generates_is_left_out(tmp_path: Path) -> None:
    published, model = tiny.build("pylate", tmp_path), tmp_path / "model"
    model.mkdir()
    tensors = load_file(published / "model.safetensors")
    whole = {f"model.{name}": tensor for name, tensor in tensors.items()}
    whole["lm_head.weight"] = tensors["embed_tokens.weight"]
    save_file(whole, published / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps({**config, "architectures": ["Lfm2ForCausalLM"]}))
    CHECKPOINT.convert(published, {}, model)
    assert load_file(model / "model.safetensors").keys() == tensors.keys()
    assert json.loads((model / "config.json").read_text())["architectures"] == ["Lfm2ColbertModel"]


@pytest.mark.parametrize("name", [one.name for one in tiny.TINY])
def test_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    published, model = converted(name, tmp_path)
    tokenizer = TextTokenizer(model, read_served(model))
    texts = [*TEXTS.values(), *("a " * count for count in range(1, 70)), "[Q]", "<|im_end|> <|startoftext|>"]
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected: list[Any] = library_answer("sentence_transformers", ORACLE, str(published), texts, kind)
        for text, found, (ids, attended, kept) in zip(texts, tokenizer(texts, kind), expected, strict=True):
            assert found.ids == ids, (kind, text)
            assert attended == [1] * found.keys + [0] * (len(ids) - found.keys), (kind, text)
            assert ([True] * len(ids) if found.kept is None else found.kept.tolist()) == kept, (kind, text)
