"""Convert a ColLFM2 checkpoint into the model folder of an artifact: the published weights, and configuration that vLLM reads.

Imports torch and transformers, and no module of the library that published it. Whether the result is right is for the
reference to say, which the library computes from the published files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Lfm2VlConfig, Lfm2VlModel

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision import conversion as shared
from encoder_plugins.families.vision.config import CONFIG, VisualConfig
from encoder_plugins.families.vision.conversion import PROJECTION, write_json
from encoder_plugins.families.vision.published import PREPROCESSOR, PROCESSOR
from encoder_plugins.models.collfm2.published import ARCHITECTURE, BASE_TYPE, DIMENSIONS, Settings
from encoder_plugins.prep.checkpoint_json import for_engine

IMAGE = "<|im_start|>user\n<image>Describe the image.<|im_end|>"
IMAGE_TOKEN = "<image>"
START, END, ALL = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
# the one file that the library reads
WEIGHTS = "model.safetensors"
PREFIX, HEAD = "model.", "lm_head.weight"
# a level of names that newer versions of transformers leave out; vLLM and the library need it
TOWER, TOWER_MODEL = "vision_tower.", "vision_tower.vision_model."


def convert(settings: Settings, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        settings: What the checkpoint and its base say.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    _check_weights(settings, folder)
    shared.link_weights(folder, target)
    tokenizer, own = shared.write_tokenizer(folder, target)
    write_json(target / CONFIG, _config(settings, tokenizer, own))
    write_json(target / PREPROCESSOR, _image_processor(settings))
    write_json(target / PROCESSOR, {"processor_class": "Lfm2VlProcessor"})


def _check_weights(settings: Settings, folder: Path) -> None:
    """Compare the tensors of the file with those of transformers' own model, made without data."""
    if [path.name for path in folder.glob("*.safetensors")] != [WEIGHTS]:
        raise SourceFileNotFound(f"the weights are not in {WEIGHTS} alone, the one file that the library reads")
    values = {**settings.config, "model_type": BASE_TYPE}
    with torch.device("meta"):
        model = Lfm2VlModel(Lfm2VlConfig.from_dict(values))
    expected = {_with_level(name): tuple(value.shape) for name, value in model.named_parameters()}
    expected |= {f"{PROJECTION}weight": (DIMENSIONS, settings.width), f"{PROJECTION}bias": (DIMENSIONS,)}
    shared.check_weights(
        folder,
        expected,
        lambda name: name.removeprefix(PREFIX),
        ignored=(HEAD,),
        kind="ColLFM2",
        # the library loads weights in bfloat16, whatever they are stored in
        floats=("BF16",),
    )


def _with_level(name: str) -> str:
    return name if name.startswith(TOWER_MODEL) else name.replace(TOWER, TOWER_MODEL, 1)


def _config(settings: Settings, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """Return the artifact's config.json: that of LFM2-VL, with our class, and what decides rows."""
    image_prompt = own.encode(IMAGE, add_special_tokens=False).ids
    if own.token_to_id(IMAGE_TOKEN) != settings.image_token or image_prompt.count(settings.image_token) != 1:
        raise Unsupported(f"{CONFIG}: image_token_id is {settings.image_token}, which is not the tokenizer's <image>")
    most = settings.bounds.most_tiles
    marks = {START, END, ALL} if most > 1 else {START, END}
    places = range(1, most + 1) if most > 1 else ()
    labels = {f"<|img_row_{row}_col_{column}|>" for row in places for column in places if row * column <= most}
    beside = set()
    for name in sorted(marks | labels):
        if (token := own.token_to_id(name)) is None:
            raise Unsupported(f"the tokenizer has no token {name}, which stands beside images")
        beside.add(token)
    text = settings.config["text_config"]
    shared.check_vocabulary(own, text.get("vocab_size", 65_536))
    special = shared.special_tokens(tokenizer) | beside | {settings.image_token}
    images = VisualConfig(
        image_prompt=tuple(image_prompt),
        image_token=settings.image_token,
        query_suffix=(),
        reserved=tuple(sorted(special)),
        bounds=settings.bounds,
    )
    served = shared.rows_config(width=settings.width, dimensions=DIMENSIONS, positions=settings.positions)
    kept = for_engine(shared.without_code(settings.config))
    # vLLM reads two fields that transformers no longer writes
    sizes = {name: text.get(name) or settings.width for name in ("conv_dim", "block_dim")}
    return {
        **kept,
        "architectures": [ARCHITECTURE],
        # vLLM's and transformers' own classes for the backbone go by it
        "model_type": BASE_TYPE,
        "image_token_id": settings.image_token,
        # there is no head of the language model, which vLLM would make otherwise
        "tie_word_embeddings": True,
        "tie_embedding": True,
        "text_config": {
            **for_engine(shared.without_code(text)),
            **sizes,
            "architectures": ["Lfm2ForCausalLM"],
            "tie_word_embeddings": True,
            "tie_embedding": True,
        },
        "vision_config": shared.without_code(settings.config["vision_config"]),
        retrieval.KEY: served.to_dict(),
        visual.KEY: images.to_dict(),
    }


def _image_processor(settings: Settings) -> dict[str, Any]:
    """Return the image processor's file: without tiles, vLLM goes by their number and the library by a field of its own."""
    kept = {name: value for name, value in settings.processor.items() if name not in ("processor_class", "auto_map")}
    bounds = settings.bounds
    return {
        **kept,
        "image_processor_type": "Lfm2VlImageProcessorFast",
        "do_image_splitting": bounds.most_tiles > 1,
        "min_tiles": bounds.fewest,
        "max_tiles": bounds.most_tiles,
    }
