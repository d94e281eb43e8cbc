"""What conversions of checkpoints on Qwen3-VL share: the published weights as they are, and configuration that vLLM reads.

Imports torch and transformers, and no module of a library that published a checkpoint.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, Qwen2TokenizerFast, Qwen3VLConfig, Qwen3VLModel

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.config import RetrievalConfig
from encoder_plugins.families.retrieval.tokens import FILE
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.config import CONFIG, VisualConfig
from encoder_plugins.families.vision.qwen3_vl import PREPROCESSOR, Settings
from encoder_plugins.prep.checkpoint import link
from encoder_plugins.prep.checkpoint_json import read_object, shown
from encoder_plugins.prep.tensor_file import FLOATS, Shape, read_header

# what some exports put before every name, and the head of the language model, which no encoder has
PREFIX, HEAD = "model.", "lm_head.weight"
INDEX = "model.safetensors.index.json"
VIDEO = "video_preprocessor_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja")
_NAMED_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def check_weights(settings: Settings, folder: Path, head: Mapping[str, Shape], *, of: str) -> None:
    """Compare the tensors of all files with those of transformers' own model, made without data.

    Args:
        settings: What the checkpoint says.
        folder: The checkpoint, its weights as safetensors.
        head: The tensors that it has beside those of Qwen3-VL.
        of: What the model is called in messages.

    Raises:
        Unsupported: A tensor is missing, unknown, or of another shape or dtype.
    """
    values = {**settings.config, "model_type": "qwen3_vl"}
    with torch.device("meta"):
        model = Qwen3VLModel(Qwen3VLConfig.from_dict(values))
    expected: dict[str, Shape] = {name: tuple(value.shape) for name, value in model.named_parameters()} | dict(head)
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
        raise Unsupported(f"the weights have no {missing[0]}, nor {len(missing) - 1} other tensors of a {of} model")
    if unknown := sorted(found.keys() - expected.keys()):
        raise Unsupported(f"the weights have {unknown[0]}, which no {of} model has")
    for name, shape in expected.items():
        if found[name] != shape:
            raise Unsupported(f"{name} is {list(found[name])}, and the configuration requires {list(shape)}")


def load_tokenizer(folder: Path) -> tuple[PreTrainedTokenizerBase, Tokenizer]:
    """Return the published tokenizer, and the one that texts are served with: without padding and truncation.

    Raises:
        Unsupported: It cannot be loaded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # the class by name: the automatic one would go to a checkpoint's own code
            tokenizer = Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    return tokenizer, own


def reserved(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the token ids that no text may contain.

    Raises:
        Unsupported: The tokenizer has tokens that the model has no row for.
    """
    rows = settings.config["text_config"].get("vocab_size")
    if (largest := max(tokenizer.get_vocab().values())) >= rows:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and text_config.vocab_size is {shown(rows)}")
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    special |= {settings.config[name] for name in _NAMED_TOKENS if isinstance(settings.config.get(name), int)}
    return tuple(sorted(special))


def image_prompt(settings: Settings, own: Tokenizer, prompt: str) -> tuple[int, ...]:
    """Return the tokens of an image's prompt.

    Raises:
        Unsupported: The image has not exactly one place in it.
    """
    ids = own.encode(prompt).ids
    if ids.count(settings.image_token) != 1:
        raise Unsupported(
            f"{CONFIG}: image_token_id is {settings.image_token}, which is not the tokenizer's <|image_pad|>"
        )
    return tuple(ids)


def write_model(
    settings: Settings,
    folder: Path,
    target: Path,
    own: Tokenizer,
    served: RetrievalConfig,
    images: VisualConfig,
    **changed: Any,
) -> None:
    """Write the model folder of an artifact.

    Args:
        settings: What the checkpoint says.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.
        own: The tokenizer that texts are served with.
        served: What decides rows and scores.
        images: What decides how images become prompts.
        changed: Fields of config.json that differ from the published ones, ``architectures`` among them; those of
            ``text_config`` as an object.
    """
    for path in sorted(folder.glob("*.safetensors")):
        link(path, target / path.name)
    if (folder / INDEX).is_file():
        link(folder / INDEX, target / INDEX)
    (target / FILE).write_text(own.to_str(pretty=True), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            link(folder / name, target / name)
    _write(target / TOKENIZER_CONFIG, _without(read_object(folder, TOKENIZER_CONFIG), "auto_map"))
    text = {**settings.config["text_config"], "tie_word_embeddings": True, **changed.pop("text_config", {})}
    config = {
        **_without(settings.config, "auto_map", "dtype", "torch_dtype"),
        # vLLM's and transformers' own classes for the backbone go by it
        "model_type": "qwen3_vl",
        # there is no head of the language model, which vLLM would make otherwise
        "tie_word_embeddings": True,
        **changed,
        "text_config": text,
        retrieval.KEY: served.to_dict(),
        visual.KEY: images.to_dict(),
    }
    _write(target / CONFIG, config)
    _write(target / PREPROCESSOR, _image_processor(settings))
    _write(target / VIDEO, _video_processor(settings))


def _image_processor(settings: Settings) -> dict[str, Any]:
    """Return the image processor's file with the pixel bounds in the one place where every version reads them."""
    kept = _without(settings.processor, "min_pixels", "max_pixels", "processor_class", "auto_map")
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


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
