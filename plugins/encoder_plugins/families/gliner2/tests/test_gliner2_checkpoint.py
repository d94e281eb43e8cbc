"""What a checkpoint may say, and what prep makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints import gliner2
from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner2 import checkpoint
from encoder_plugins.families.gliner2.config import COUNTING_LAYERS, KEY, Gliner2Config
from encoder_plugins.models.deberta_gliner2.checkpoint import CHECKPOINT

SPAN = {"model_type": "extractor"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (8, "count_lstm")),
        ({"max_width": 12, "counting_layer": "count_lstm_v2"}, (12, "count_lstm_v2")),
        ({"architecture": "span", "counting_layer": "count_lstm_moe"}, (8, "count_lstm_moe")),
        # the library takes the one of span_head where both are there
        ({"max_width": 12, "span_head": {"max_width": 6, "dropout": 0.1}}, (6, "count_lstm")),
        ({"architecture": None, "counting_layer": None, "max_len": 5}, (8, "count_lstm")),
        ({"model_type": None, "token_pooling": None, "max_width": None}, (8, "count_lstm")),
    ],
)
def test_missing_fields_have_the_librarys_meaning(values: dict[str, Any], expected: tuple[int, str]) -> None:
    width, counting = expected
    assert checkpoint.parse(SPAN | values) == Gliner2Config(max_width=width, counting_layer=counting)
    # it never reads the type
    assert checkpoint.parse(values) == checkpoint.parse(SPAN | values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"architecture": "boundary"}, "GLiNER2.5"),
        ({"architecture": "other"}, "architecture"),
        ({"token_pooling": "mean"}, "token_pooling"),
        ({"counting_layer": "lstm"}, "counting_layer"),
        ({"max_width": 0}, "max_width"),
        ({"max_width": 65}, "up to 64"),
        ({"span_head": [1]}, "span_head"),
        ({"span_head": {"span_mode": "markerV1"}}, "span_mode"),
    ],
)
def test_what_would_be_served_otherwise_is_refused_by_field(values: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        checkpoint.parse(SPAN | values)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as it was published."""
    return gliner2.build(tmp_path_factory.mktemp("published") / "checkpoint")


def changed(published: Path, folder: Path, name: str, **values: Any) -> Path:
    """Link a checkpoint, with other values in one of its JSON files."""
    for path in published.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(published)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(content | values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("distances", [-1, 0])
def test_the_artifact_has_the_encoders_configuration_and_the_heads(
    published: Path, tmp_path: Path, distances: int
) -> None:
    folder = changed(published, tmp_path / "changed", checkpoint.ENCODER_CONFIG, max_relative_positions=distances)
    CHECKPOINT.check(folder, {})
    model = tmp_path / "model"
    model.mkdir()
    CHECKPOINT.convert(folder, {}, model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["DebertaGliner2Model"]
    assert config[KEY] == {"max_width": 8, "counting_layer": "count_lstm_v2"}
    assert config["max_position_embeddings"] == checkpoint.CONTEXT
    # what "the encoder's own number" stood for
    assert config["max_relative_positions"] == 128
    assert CHECKPOINT.engine_settings(model, "cpu").max_model_len == checkpoint.CONTEXT


@pytest.mark.parametrize("layer", [layer for layer in COUNTING_LAYERS if layer != "count_lstm_v2"])
def test_weights_of_another_counting_layer_are_refused(published: Path, tmp_path: Path, layer: str) -> None:
    folder = changed(published, tmp_path / "changed", "config.json", counting_layer=layer)
    (tmp_path / "model").mkdir()
    with pytest.raises(Unsupported, match="count_embed"):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


def test_an_encoder_that_is_not_served_is_refused(published: Path, tmp_path: Path) -> None:
    name = checkpoint.ENCODER_CONFIG
    with pytest.raises(Unsupported, match="model_type"):
        CHECKPOINT.check(changed(published, tmp_path / "a", name, model_type="bert"), {})
    with pytest.raises(Unsupported, match="conv_kernel_size"):
        CHECKPOINT.check(changed(published, tmp_path / "b", name, conv_kernel_size=3), {})
    folder = changed(published, tmp_path / "c", "config.json")
    (folder / name).unlink()
    with pytest.raises(SourceFileNotFound, match="encoder_config"):
        CHECKPOINT.check(folder, {})


def test_a_tokenizer_without_the_librarys_marks_is_refused(published: Path, tmp_path: Path) -> None:
    folder = changed(published, tmp_path / "changed", "tokenizer.json")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[R]"]
    path.write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "model").mkdir()
    with pytest.raises(Unsupported, match=r"\[R\]"):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


def test_an_unknown_token_that_is_not_the_tokenizers_own_is_refused(published: Path, tmp_path: Path) -> None:
    # the library gives its id to characters that the vocabulary lacks
    folder = changed(published, tmp_path / "changed", "tokenizer_config.json", unk_token="[MASK]")
    (tmp_path / "model").mkdir()
    with pytest.raises(Unsupported, match=r"unk_token is '\[MASK\]'"):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")
