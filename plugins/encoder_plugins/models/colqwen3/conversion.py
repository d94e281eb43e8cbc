"""Convert a ColQwen3 checkpoint into the model folder of an artifact: the published weights, and configuration that vLLM reads.

Imports torch and transformers, and no module of the library that published it. Whether the result is right is for the
reference to say, which the library computes from the published files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLModel

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.config import RetrievalConfig, Side
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.families.retrieval.tokens import FILE
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.config import CONFIG, VisualConfig
from encoder_plugins.models.colqwen3.published import ARCHITECTURE, PREPROCESSOR, Settings
from encoder_plugins.prep.checkpoint import link
from encoder_plugins.prep.checkpoint_json import shown
from encoder_plugins.prep.tensor_file import FLOATS, Shape, read_header

QUERY = "Query: "
QUERY_END, QUERY_ENDS = "<|endoftext|>", 10
IMAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
PROJECTION = "custom_text_proj."
# what some exports put before every name, and the head of the language model, which the library leaves out
PREFIX, HEAD = "model.", "lm_head.weight"
INDEX = "model.safetensors.index.json"
VIDEO = "video_preprocessor_config.json"
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")


def convert(settings: Settings, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        settings: What the checkpoint says.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    _check_weights(settings, folder)
    for path in sorted(folder.glob("*.safetensors")):
        link(path, target / path.name)
    if (folder / INDEX).is_file():
        link(folder / INDEX, target / INDEX)
    tokenizer = _tokenizer(folder)
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    (target / FILE).write_text(own.to_str(pretty=True), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            link(folder / name, target / name)
    _write(target / CONFIG, _config(settings, tokenizer, own))
    _write(target / PREPROCESSOR, _image_processor(settings))
    _write(target / VIDEO, _video_processor(settings))


def _check_weights(settings: Settings, folder: Path) -> None:
    """Compare the tensors of all files with those of transformers' own model, made without data."""
    values = {**settings.config, "model_type": "qwen3_vl"}
    with torch.device("meta"):
        model = Qwen3VLModel(Qwen3VLConfig.from_dict(values))
    expected: dict[str, Shape] = {name: tuple(value.shape) for name, value in model.named_parameters()}
    expected |= {
        f"{PROJECTION}weight": (settings.dimensions, settings.width),
        f"{PROJECTION}bias": (settings.dimensions,),
    }
    found: dict[str, Shape] = {}
    for path in sorted(folder.glob("*.safetensors")):
        header = read_header(folder, path.name)
        for name, shape in header.shapes.items():
            if header.dtypes[name] not in FLOATS:
                raise Unsupported(
                    f"{path.name}: {name} is {header.dtypes[name]}; supported: {', '.join(sorted(FLOATS))}"
                )
            found[name.removeprefix(PREFIX)] = shape
    found.pop(HEAD, None)
    if missing := sorted(expected.keys() - found.keys()):
        raise Unsupported(f"the weights have no {missing[0]}, nor {len(missing) - 1} other tensors of a ColQwen3 model")
    if unknown := sorted(found.keys() - expected.keys()):
        raise Unsupported(f"the weights have {unknown[0]}, which no ColQwen3 model has")
    for name, shape in expected.items():
        if found[name] != shape:
            raise Unsupported(f"{name} is {list(found[name])}, and the configuration requires {list(shape)}")


def _tokenizer(folder: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise Unsupported(f"the tokenizer is a {type(tokenizer).__name__}; only fast tokenizers are served")
    return tokenizer


def _config(settings: Settings, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """Return the artifact's config.json: that of Qwen3-VL, with our class, and what decides rows."""
    image_prompt = own.encode(IMAGE).ids
    if image_prompt.count(settings.image_token) != 1:
        raise Unsupported(
            f"{CONFIG}: image_token_id is {settings.image_token}, which is not the tokenizer's <|image_pad|>"
        )
    suffix = own.encode(QUERY_END * QUERY_ENDS, add_special_tokens=False).ids
    if len(suffix) != QUERY_ENDS or len(set(suffix)) != 1:
        raise Unsupported(f"the tokenizer has no token {QUERY_END}")
    rows = settings.config["text_config"].get("vocab_size")
    if (largest := max(own.get_vocab().values())) >= rows:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and text_config.vocab_size is {shown(rows)}")
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    named = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    special |= {settings.config[name] for name in named if isinstance(settings.config.get(name), int)}
    # a longer text is refused, not cut: one token more than the model has positions is enough to see it
    most = settings.positions + 1
    served = RetrievalConfig(
        query=Side(prompt=QUERY, most_tokens=most, skips=False),
        document=Side(prompt="", most_tokens=most, skips=False),
        expansion=None,
        skiplist=(),
        projection=(DenseSpec(inputs=settings.width, outputs=settings.dimensions, bias=True, activation="Identity"),),
        normalize=True,
        similarity="maxsim",
    )
    images = VisualConfig(
        image_prompt=tuple(image_prompt),
        image_token=settings.image_token,
        query_suffix=tuple(suffix),
        reserved=tuple(sorted(special)),
        bounds=settings.bounds,
    )
    kept = {name: value for name, value in settings.config.items() if name not in ("auto_map", "dtype", "torch_dtype")}
    return {
        **kept,
        "architectures": [ARCHITECTURE],
        # vLLM's and transformers' own classes for the backbone go by it
        "model_type": "qwen3_vl",
        # there is no head of the language model, which vLLM would make otherwise
        "tie_word_embeddings": True,
        "text_config": {**kept["text_config"], "tie_word_embeddings": True},
        retrieval.KEY: served.to_dict(),
        visual.KEY: images.to_dict(),
    }


def _image_processor(settings: Settings) -> dict[str, Any]:
    """Return the image processor's file with the pixel bounds in the one place where every version reads them."""
    left_out = ("min_pixels", "max_pixels", "processor_class", "auto_map")
    kept = {name: value for name, value in settings.processor.items() if name not in left_out}
    size = {"shortest_edge": settings.bounds.least, "longest_edge": settings.bounds.most}
    return {**kept, "image_processor_type": "Qwen2VLImageProcessorFast", "size": size}


def _video_processor(settings: Settings) -> dict[str, Any]:
    """Return a file that vLLM's Qwen3-VL wants; no video is ever processed."""
    names = ("patch_size", "merge_size", "temporal_patch_size")
    return {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "size": {"shortest_edge": 4096, "longest_edge": 25_165_824},
        **{name: settings.processor[name] for name in names},
    }


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
