"""What prep refuses of a ColQwen3 checkpoint, and that tokens, sizes and pixels are those of the library."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import AutoImageProcessor

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.errors import PrepareError
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.vision.cases import SIZES, TEXTS, picture
from encoder_plugins.families.vision.config import read_visual
from encoder_plugins.families.vision.pixels import Pixels
from encoder_plugins.families.vision.request import VisualLimits
from encoder_plugins.families.vision.sizes import PixelBounds
from encoder_plugins.families.vision.tokens import VisualTokenizer
from encoder_plugins.inputs.image import MOST_RATIO
from encoder_plugins.models.colqwen3 import PLUGIN
from encoder_plugins.models.colqwen3.checkpoint import CHECKPOINT
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.serving import limits

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

PARTS = ("text_config", "vision_config")
ORACLE = "encoder_plugins.families.vision.tests.oracle"
LIMITS = limits.typed(VisualLimits, limits.defaults(PLUGIN))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def model(published: Path) -> Path:
    folder = published.parent / "model"
    folder.mkdir()
    CHECKPOINT.check(published, {})
    CHECKPOINT.convert(published, {}, folder)
    return folder


def library(function: str, published: Path, *arguments: Any) -> Any:
    return library_answer("sauerkrautlm_colpali", f"{ORACLE}:{function}", PLUGIN.name, str(published), *arguments)


@pytest.mark.parametrize(
    ("file", "changed", "says"),
    [
        ("config.json", {"architectures": ["ColQwen2"]}, "architectures is .*ColQwen2.*ColQwen3"),
        ("config.json", {"model_type": "llama_nemotron_vl"}, "model_type is .*llama_nemotron_vl"),
        ("config.json", {"vision_config": None}, "vision_config is null; expected an object"),
        ("config.json", {"text_config": {"attention_bias": True}}, "text_config: attention_bias is true"),
        ("config.json", {"text_config": {"hidden_act": "gelu"}}, 'text_config: hidden_act is "gelu"'),
        ("config.json", {"vision_config": {"hidden_act": "mish"}}, 'vision_config: hidden_act is "mish"'),
        (
            "config.json",
            {"text_config": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e6}}},
            'text_config: rope_parameters: rope_type is "linear"',
        ),
        ("config.json", {"dim": 320}, r"custom_text_proj.weight is \[48, 128\], and the configuration requires \[320"),
        ("config.json", {"image_token_id": 3}, "image_token_id is 3, which is not the tokenizer's"),
        ("preprocessor_config.json", {"patch_size": 14}, "patch_size is 14, and the model's patch_size is 16"),
        ("preprocessor_config.json", {"do_resize": False}, "do_resize is false"),
        ("preprocessor_config.json", {"size": {"height": 5, "width": 5}}, "shortest_edge is null; expected an integer"),
        ("preprocessor_config.json", {"size": None}, "size is null"),
        (
            "preprocessor_config.json",
            {"min_pixels": 9000, "max_pixels": 4000},
            "9000 pixels at least, and 4000 at most",
        ),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    file: str, changed: dict[str, Any], says: str, published: Path, tmp_path: Path
) -> None:
    folder = tiny.build(tmp_path)
    before = json.loads((folder / file).read_text())
    changed = {name: {**before[name], **value} if name in PARTS and value else value for name, value in changed.items()}
    (folder / file).write_text(json.dumps({**before, **changed}))
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


@pytest.mark.parametrize(
    ("renamed", "says"),
    [
        ({"custom_text_proj.bias": None}, "the weights have no custom_text_proj.bias"),
        ({"custom_text_proj.weight": "embedding_proj_layer.weight"}, "the weights have no custom_text_proj.weight"),
        ({"": "head.weight"}, "the weights have head.weight, which no ColQwen3 model has"),
    ],
)
def test_weights_of_another_model_are_refused(
    renamed: dict[str, str | None], says: str, published: Path, tmp_path: Path
) -> None:
    folder = tiny.build(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for old, new in renamed.items():
        tensor = tensors.pop(old, np.zeros(3, np.float32))
        if new is not None:
            tensors[new] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


COUNTED = [(1000, 1400), (20, 12)]


@pytest.mark.parametrize(
    ("older", "least", "most"),
    [
        ({"min_pixels": 4096, "max_pixels": 131_072}, 4096, 131_072),
        ({"min_pixels": 4096, "max_pixels": 131_072, "size": None}, 4096, 131_072),
        ({"min_pixels": 4096}, 4096, 307_200),
        ({"max_pixels": 131_072}, 65_536, 131_072),
    ],
)
def test_each_of_the_older_pixel_bounds_counts(older: dict[str, Any], least: int, most: int, tmp_path: Path) -> None:
    folder = tiny.build(tmp_path)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **older}))
    model = tmp_path / "model"
    model.mkdir()
    CHECKPOINT.convert(folder, {}, model)
    bounds = read_visual(model).bounds
    assert isinstance(bounds, PixelBounds)
    assert (bounds.least, bounds.most, bounds.side) == (least, most, 32)
    written = json.loads((model / path.name).read_text())
    assert written["size"] == {"shortest_edge": least, "longest_edge": most}
    assert not {"min_pixels", "max_pixels"} & written.keys()
    for counted, size in zip(library("image_tokens", folder, COUNTED), COUNTED, strict=True):
        assert counted.count(read_visual(model).image_token) == bounds.tokens(*size)


def test_tokens_are_those_of_the_library(published: Path, model: Path) -> None:
    tokenizer = VisualTokenizer(model, read_served(model), read_visual(model))
    texts = [*TEXTS.values(), "ends in a space ", "ends in a line\n", *("a " * count for count in range(1, 300, 17))]
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected = library("tokens", published, texts, kind)
        assert [text.ids for text in tokenizer(texts, kind)] == expected


def test_images_of_every_size_have_the_tokens_of_the_library(published: Path, model: Path) -> None:
    visual, chosen = read_visual(model), random.Random(0)
    sizes = [*SIZES.values(), (1, 1), (200, 1), (1, 200), (31, 33), (512, 512), (513, 511), (4000, 300), (10_000, 60)]
    sizes += [(chosen.randint(20, 2000), chosen.randint(20, 2000)) for _ in range(15)]
    assert all(max(size) <= MOST_RATIO * min(size) for size in sizes)
    for size, ids in zip(sizes, library("image_tokens", published, sizes), strict=True):
        place = ids.index(visual.image_token)
        count = ids.count(visual.image_token)
        assert count == visual.bounds.tokens(*size), size
        assert [*ids[: place + 1], *ids[place + count :]] == list(visual.image_prompt)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_pixels_are_those_of_the_library(size: tuple[int, int], published: Path, model: Path) -> None:
    content, visual = picture(*size), read_visual(model)
    image, tokens = Pixels(LIMITS, visual.bounds, 1).of(base64.b64decode(content), path="data.image")
    processor = AutoImageProcessor.from_pretrained(model, local_files_only=True)
    found = processor(images=[image], return_tensors="np")
    expected = library("pixels", published, content)
    assert found["image_grid_thw"].prod() == 4 * tokens == len(expected)
    # the same function scaled both, from the same 8-bit pixels
    np.testing.assert_allclose(found["pixel_values"], expected, rtol=0, atol=1e-6)
    assert isinstance(image, Image.Image)


@pytest.mark.parametrize(
    ("published", "served"),
    [
        ({"mrope_interleaved": False, "mrope_section": [8, 4, 4]}, [8, 4, 4]),
        ({"mrope_section": [8, 4, 4]}, [8, 4, 4]),
        ({}, [24, 20, 20]),
    ],
)
def test_positions_are_rotated_as_transformers_does_whatever_a_checkpoint_says(
    published: dict[str, Any], served: list[int], tmp_path: Path
) -> None:
    folder, model = tiny.build(tmp_path), tmp_path / "model"
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0, **published}
    path.write_text(json.dumps(config))
    model.mkdir()
    CHECKPOINT.convert(folder, {}, model)
    written = json.loads((model / path.name).read_text())["text_config"]["rope_parameters"]
    assert written == {
        "rope_type": "default",
        "rope_theta": 100.0,
        "mrope_section": served,
        "mrope_interleaved": True,
    }
