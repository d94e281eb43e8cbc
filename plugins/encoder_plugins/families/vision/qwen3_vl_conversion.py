"""What conversions of checkpoints on Qwen3-VL share, beside what those of every visual checkpoint do.

Imports torch and transformers, and no module of a library that published a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Qwen2TokenizerFast, Qwen3VLConfig, Qwen3VLModel

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.config import RetrievalConfig
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision import conversion
from encoder_plugins.families.vision.config import CONFIG, VisualConfig
from encoder_plugins.families.vision.conversion import without_code, write_json
from encoder_plugins.families.vision.published import PREPROCESSOR
from encoder_plugins.families.vision.qwen3_vl import Settings
from encoder_plugins.prep.checkpoint_json import for_engine
from encoder_plugins.prep.tensor_file import Shape

# what some exports put before every name, and the head of the language model, which no encoder has
PREFIX, HEAD = "model.", "lm_head.weight"
VIDEO = "video_preprocessor_config.json"
# fields of an image processor that the artifact says otherwise, or does not need
_LEFT_OUT = ("min_pixels", "max_pixels", "processor_class", "auto_map")
# pairs of a head's numbers that are rotated by time, height and width, where a checkpoint does not say
_SECTIONS = (24, 20, 20)
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
    conversion.check_weights(folder, expected, lambda name: name.removeprefix(PREFIX), ignored=(HEAD,), kind=of)


def write_tokenizer(folder: Path, target: Path) -> tuple[Any, Tokenizer]:
    """Give an artifact the published tokenizer; as ``conversion.write_tokenizer``, by its class."""
    return conversion.write_tokenizer(folder, target, Qwen2TokenizerFast)


def reserved(settings: Settings, tokenizer: Any, own: Tokenizer) -> tuple[int, ...]:
    """Return the token ids that no text may contain.

    Raises:
        Unsupported: The tokenizer has tokens that the model has no row for.
    """
    conversion.check_vocabulary(own, settings.config["text_config"].get("vocab_size"))
    named = {settings.config[name] for name in _NAMED_TOKENS if isinstance(settings.config.get(name), int)}
    return tuple(sorted(conversion.special_tokens(tokenizer) | named))


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
    settings: Settings, folder: Path, target: Path, served: RetrievalConfig, images: VisualConfig, **changed: Any
) -> None:
    """Write the model folder of an artifact, but for its tokenizer.

    Args:
        settings: What the checkpoint says.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write.
        served: What decides rows and scores.
        images: What decides how images become prompts.
        changed: Fields of config.json that differ from the published ones, ``architectures`` among them; those of
            ``text_config`` as an object.
    """
    conversion.link_weights(folder, target)
    text = {**for_engine(_text_config(settings)), "tie_word_embeddings": True, **changed.pop("text_config", {})}
    config = {
        **for_engine(without_code(settings.config)),
        # vLLM's and transformers' own classes for the backbone go by it
        "model_type": "qwen3_vl",
        # there is no head of the language model, which vLLM would make otherwise
        "tie_word_embeddings": True,
        **changed,
        "text_config": text,
        retrieval.KEY: served.to_dict(),
        visual.KEY: images.to_dict(),
    }
    write_json(target / CONFIG, config)
    write_json(target / PREPROCESSOR, _image_processor(settings))
    write_json(target / VIDEO, _video_processor(settings))


def _text_config(settings: Settings) -> dict[str, Any]:
    """Return the published ``text_config`` with the rotation of positions that transformers always takes, and vLLM only where it is named."""
    text = settings.config["text_config"]
    name = "rope_parameters" if "rope_parameters" in text else "rope_scaling"
    rope = {
        "rope_type": "default",
        "mrope_section": list(_SECTIONS),
        **(text.get(name) or {}),
        "mrope_interleaved": True,
    }
    return {**text, name: rope}


def _image_processor(settings: Settings) -> dict[str, Any]:
    """Return the image processor's file with the pixel bounds in the one place where every version reads them."""
    kept = {name: value for name, value in settings.processor.items() if name not in _LEFT_OUT}
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
