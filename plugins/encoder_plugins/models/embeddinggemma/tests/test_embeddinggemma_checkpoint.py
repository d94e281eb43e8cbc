"""What a checkpoint may be, what is refused by file and field, and what is written for the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.conversion import DENSE_FILE
from encoder_plugins.families.embedding.served import DENSE_KEY, served_layout
from encoder_plugins.families.retrieval import dense
from encoder_plugins.models.embeddinggemma.checkpoint import CHECKPOINT
from encoder_plugins.models.embeddinggemma.layout import encoder_layout
from encoder_plugins.models.embeddinggemma.tests import tiny
from encoder_plugins.prep.checkpoint_files import INDEX

Change = Callable[[Path], None]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tiny.build(tmp_path)


def change(name: str, **fields: Any) -> Change:
    """Set fields of a JSON file."""

    def apply(folder: Path) -> None:
        found = json.loads((folder / name).read_text()) | fields
        (folder / name).write_text(json.dumps(found))

    return apply


def tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Change the encoder's weights."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        edit(found)
        save_file(found, path, metadata={"format": "pt"})

    return apply


def convert(folder: Path, target: Path) -> Path:
    target.mkdir()
    CHECKPOINT.check(folder, {})
    CHECKPOINT.convert(folder, {}, target)
    return target


def test_the_engine_gets_the_published_weights_and_the_dense_modules(published: Path, tmp_path: Path) -> None:
    before = (published / "config.json").read_bytes()
    # an index would keep vLLM from the file beside it
    (published / INDEX).write_text("{}")
    model = convert(published, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"] == ["SentenceGemma3Model"]
    chain = dense.from_config(config[DENSE_KEY])
    assert [(spec.inputs, spec.outputs) for spec in chain] == [(160, 320), (320, 160)]
    written = load_file(model / DENSE_FILE)
    for number, path in enumerate(("2_Dense", "3_Dense")):
        (only,) = load_file(published / path / "model.safetensors").values()
        torch.testing.assert_close(written[f"dense.{number}.linear.weight"], only, rtol=0, atol=0)
    present = {**load_file(model / "model.safetensors"), **written}
    assert {name: tuple(tensor.shape) for name, tensor in present.items()} == {
        name: tuple(shape) for name, shape in served_layout(encoder_layout(config), chain).shapes.items()
    }
    assert not (model / INDEX).exists()
    # what is prepared reads like what was published, which is as it was
    assert CHECKPOINT.read(model) == CHECKPOINT.read(published)
    assert (published / "config.json").read_bytes() == before


def test_what_a_request_may_be_follows_from_the_files(published: Path) -> None:
    found = CHECKPOINT.read(published)
    assert (found.dimensions, found.pooling, found.normalize, found.max_tokens) == (160, "mean", True, 64)
    assert found.prompts["document"] == "title: none | text: "
    settings = CHECKPOINT.engine_settings(published, "cpu")
    assert (settings.max_model_len, settings.batch_tokens) == (64, 64)


def test_a_head_that_the_library_leaves_out_is_left_out(published: Path, tmp_path: Path) -> None:
    before = load_file(published / "model.safetensors")
    tensors(lambda found: found.update({"lm_head.weight": torch.zeros(1)}))(published)
    model = convert(published, tmp_path / "model")
    assert load_file(model / "model.safetensors").keys() == before.keys()


def test_weights_below_a_prefix_are_those_of_the_encoder(published: Path, tmp_path: Path) -> None:
    def prefixed(found: dict[str, torch.Tensor]) -> None:
        for name in list(found):
            found[f"model.{name}"] = found.pop(name)

    tensors(prefixed)(published)
    convert(published, tmp_path / "model")


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (change("config.json", architectures=["Gemma3ForCausalLM"]), "supported: Gemma3TextModel"),
        (change("config.json", use_bidirectional_attention=False), "use_bidirectional_attention is not true"),
        (change("config.json", hidden_activation="relu"), "hidden_activation='relu'"),
        (change("config.json", hidden_size=128), "2_Dense/config.json: in_features is 160"),
        (change("1_Pooling/config.json", pooling_mode="cls"), "1_Pooling/config.json: pooling_mode is cls"),
        # even without prompts in the checkpoint: a request may have its own
        (
            lambda folder: (
                change("1_Pooling/config.json", include_prompt=False)(folder),
                change("config_sentence_transformers.json", prompts={})(folder),
            ),
            "1_Pooling/config.json: include_prompt is false",
        ),
        (change("3_Dense/config.json", in_features=160), "3_Dense/config.json: in_features is 160"),
        (tensors(lambda found: found.pop("norm.weight")), "norm.weight is missing"),
        (tensors(lambda found: found.update({"norm.weight": torch.zeros(3)})), "norm.weight is [3]"),
    ],
)
def test_what_would_be_served_differently_is_refused_by_name(
    published: Path, tmp_path: Path, harm: Change, named: str
) -> None:
    harm(published)
    with pytest.raises(Unsupported) as caught:
        convert(published, tmp_path / "model")
    assert named in str(caught.value)
