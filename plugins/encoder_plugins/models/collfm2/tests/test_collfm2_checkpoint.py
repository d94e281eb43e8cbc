"""What prep refuses of a ColLFM2 checkpoint, and that tokens, tiles and pixels are those of the library."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.errors import PrepareError
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.vision.cases import SIZES, TEXTS, picture
from encoder_plugins.families.vision.checkpoint import PROMPT_TOKENS
from encoder_plugins.families.vision.config import read_visual
from encoder_plugins.families.vision.pixels import Pixels
from encoder_plugins.families.vision.request import VisualLimits
from encoder_plugins.families.vision.sizes import Tiles, ViewBounds
from encoder_plugins.families.vision.tokens import VisualTokenizer
from encoder_plugins.inputs.image import MOST_RATIO
from encoder_plugins.models.collfm2 import PLUGIN
from encoder_plugins.models.collfm2.checkpoint import CHECKPOINT
from encoder_plugins.models.collfm2.tests import tiny
from encoder_plugins.serving import limits

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

ORACLE = "encoder_plugins.families.vision.tests.oracle"
LIMITS = limits.typed(VisualLimits, limits.defaults(PLUGIN))
EXTREMES = [
    (1, 1),
    (200, 1),
    (700, 12),
    (12, 700),
    (1, 200),
    (31, 33),
    (256, 256),
    (362, 362),
    (363, 362),
    (363, 363),
    (4000, 300),
    (6000, 60),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))[0]


@pytest.fixture(scope="module")
def model(published: Path) -> Path:
    return converted(published, {})


def converted(published: Path, auxiliary: Mapping[str, Path]) -> Path:
    target = published.parent / "model"
    target.mkdir()
    CHECKPOINT.check(published, auxiliary)
    CHECKPOINT.convert(published, auxiliary, target)
    return target


def library(function: str, published: Path, *arguments: Any) -> Any:
    return library_answer("sauerkrautlm_colpali", f"{ORACLE}:{function}", PLUGIN.name, str(published), *arguments)


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("config.json", {"model_type": "lfm2_vl"}, "model_type is .*lfm2_vl.*collfm2"),
        ("config.json", {"dim": 320}, "dim is 320"),
        ("config.json", {"vision_config": None}, "vision_config is null; expected an object, as LFM2-VL has it"),
        ("config.json", {"vision_config": {"model_type": "clip"}}, "model_type is .*clip.*siglip2_vision_model"),
        ("config.json", {"vision_config": {"vision_use_head": True}}, "vision_config: vision_use_head is true"),
        ("config.json", {"image_token_id": 3}, "image_token_id is 3, which is not the tokenizer's <image>"),
        ("config.json", {"projector_use_layernorm": False}, "weights have multi_modal_projector.layer_norm"),
        ("config.json", {"projector_hidden_size": 64}, r"multi_modal_projector.linear_1.weight is \[96, 256\]"),
        (
            "preprocessor_config.json",
            {"encoder_patch_size": 14},
            "encoder_patch_size is 14, and the model's patch_size is 16",
        ),
        ("preprocessor_config.json", {"downsample_factor": 4}, "downsample_factor is 4, and the model's"),
        ("preprocessor_config.json", {"use_thumbnail": False}, "use_thumbnail is false"),
        ("preprocessor_config.json", {"resample": 3}, "resample is 3"),
        ("preprocessor_config.json", {"tile_size": 250}, "tile_size is 250, which is no multiple of 32"),
        ("preprocessor_config.json", {"min_tiles": 1}, "min_tiles is 1 and max_tiles 6"),
        ("preprocessor_config.json", {"max_tiles": 11}, "min_tiles is 2 and max_tiles 11"),
        ("preprocessor_config.json", {"max_pixels_tolerance": 0}, "max_pixels_tolerance is 0"),
        ("preprocessor_config.json", {"min_image_tokens": 65}, "65 tokens at least, and 64 at most"),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    file: str, values: dict[str, Any], says: str, tmp_path: Path
) -> None:
    published, _ = tiny.build(tmp_path)
    changed(published / file, **values)
    with pytest.raises(PrepareError, match=says):
        converted(published, {})


@pytest.mark.parametrize(
    ("renamed", "dtype", "says"),
    [
        ({"custom_text_proj.bias": None}, torch.bfloat16, "the weights have no custom_text_proj.bias"),
        ({"": "head.weight"}, torch.bfloat16, "the weights have head.weight, which no ColLFM2 model has"),
        ({"": "head.weight"}, torch.float32, "head.weight is F32; supported: BF16"),
        # as newer versions of transformers save it, which the library would leave out
        (
            {
                "model.vision_tower.vision_model.post_layernorm.bias": "model.vision_tower.post_layernorm.bias",
            },
            torch.bfloat16,
            "the weights have no vision_tower.vision_model.post_layernorm.bias",
        ),
    ],
)
def test_weights_of_another_model_are_refused(
    renamed: dict[str, str | None], dtype: torch.dtype, says: str, tmp_path: Path
) -> None:
    published, _ = tiny.build(tmp_path)
    tensors = load_file(published / "model.safetensors")
    for old, new in renamed.items():
        tensor = tensors.pop(old, torch.zeros(3, dtype=dtype))
        if new is not None:
            tensors[new] = tensor
    save_file(tensors, published / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PrepareError, match=says):
        converted(published, {})


def test_the_configuration_comes_from_the_repository_of_the_base(model: Path, tmp_path: Path) -> None:
    published, base = tiny.build(tmp_path, whole=False)
    with pytest.raises(PrepareError, match=f"names the repository {tiny.BASE} for them: pin that one as well"):
        CHECKPOINT.check(published, {})
    with pytest.raises(PrepareError, match="given are a/b, c/d"):
        CHECKPOINT.check(published, {"a/b": base, "c/d": base})
    found = converted(published, {tiny.BASE: base})
    assert (
        json.loads((found / "config.json").read_text())["text_config"]
        == (json.loads((model / "config.json").read_text())["text_config"])
    )
    (expected,) = library_answer(
        "sauerkrautlm_colpali", f"{ORACLE}:with_auxiliary", PLUGIN.name, str(published), str(base), ["a"]
    )
    assert np.array_equal(expected, library("output", tiny.build(tmp_path / "whole")[0], CASE))
    changed(base / "config.json", model_type="qwen3_vl")
    with pytest.raises(PrepareError, match=r"model_type is .*qwen3_vl.*; supported: lfm2_vl"):
        CHECKPOINT.check(published, {tiny.BASE: base})
    whole, _ = tiny.build(tmp_path / "other")
    with pytest.raises(PrepareError, match="needs no auxiliary repository: a/b"):
        CHECKPOINT.check(whole, {"a/b": base})


CASE = {"id": "a", "text": "a", "image": None, "input_type": "query", "documents": None}


def test_tokens_are_those_of_the_library(published: Path, model: Path) -> None:
    tokenizer = VisualTokenizer(model, read_served(model), read_visual(model))
    texts = [*TEXTS.values(), "ends in a space ", "ends in a line\n", *("a " * count for count in range(1, 300, 17))]
    # longer than what the library calls its longest text, to which it cuts none
    texts.append("a b c d " * 700)
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected = library("tokens", published, texts, kind)
        assert [text.ids for text in tokenizer(texts, kind)] == expected


@pytest.mark.parametrize("splitting", [True, False])
def test_images_of_every_size_have_the_tokens_of_the_library(splitting: bool, tmp_path: Path) -> None:
    published, _ = tiny.build(tmp_path)
    changed(published / "preprocessor_config.json", do_image_splitting=splitting)
    model = converted(published, {})
    visual, chosen = read_visual(model), random.Random(0)
    sizes = [*SIZES.values(), *EXTREMES, *((chosen.randint(20, 1500), chosen.randint(20, 1500)) for _ in range(25))]
    sizes = [size for size in sizes if visual.bounds.fits(*size)]
    counts = set()
    for size, ids in zip(sizes, library("image_tokens", published, sizes), strict=True):
        around = len(visual.image_prompt) - 1
        assert len(ids) == around + visual.bounds.tokens(*size), size
        place = visual.image_prompt.index(visual.image_token)
        assert tuple(ids[:place]) == visual.image_prompt[:place]
        assert tuple(ids[place - around :]) == visual.image_prompt[place + 1 :]
        # a step of the engine holds it
        assert len(ids) <= visual.bounds.most_tokens + PROMPT_TOKENS, size
        counts.add(len(ids))
    assert len(counts) > 8


def test_the_largest_page_of_the_published_sizes_fits() -> None:
    # as LFM2-VL-450M has it
    view = ViewBounds(side=32, least=64 * 1024, most=256 * 1024)
    tiles = Tiles(view=view, tile=512, fewest=2, most_tiles=10, tolerance=2.0, patch=16)
    assert tiles.grid(1240, 1754) == (2, 3)
    assert tiles.most_tokens == 2 + 10 * 257 + 1 + 256
    chosen = random.Random(1)
    sizes = [(chosen.randint(1, 6000), chosen.randint(1, 6000)) for _ in range(300)]
    sizes = [size for size in sizes if max(size) <= MOST_RATIO * min(size)]
    assert all(tiles.fits(*size) for size in sizes)
    most = [tiles.tokens(*size) for size in sizes]
    assert tiles.most_tokens - 100 < max(most) <= tiles.most_tokens


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_pixels_are_those_of_the_library(size: tuple[int, int], published: Path, model: Path) -> None:
    content, visual = picture(*size), read_visual(model)
    image, _ = Pixels(LIMITS, visual.bounds, 1).of(base64.b64decode(content), path="data.image")
    assert image.size == size
    processor = AutoImageProcessor.from_pretrained(model, local_files_only=True)
    found = processor(images=[image], return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(found, library("views", published, content), rtol=0, atol=1e-6)
