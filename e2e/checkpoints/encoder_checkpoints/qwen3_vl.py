"""What tiny checkpoints on Qwen3-VL share: configuration, tokenizer and image processor of the true format, and random weights.

Runs in the reference environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from encoder_plugins.families.vision.cases import PASSAGES, TEXTS

VOCABULARY = 512
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
# 64 to 300 tokens
LEAST_PIXELS, MOST_PIXELS = 65_536, 307_200
_PATCHES = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}


def draw(model: torch.nn.Module, seed: int) -> None:
    """Give a model weights whose rows differ by token and by image."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.3 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5
            parameter.copy_(torch.randn_like(parameter) * size + float("norm" in name and name.endswith("weight")))


def write_processors(
    folder: Path, processor_class: str, *, least_pixels: int = LEAST_PIXELS, most_pixels: int = MOST_PIXELS
) -> None:
    """Write the files of the image and the video processor; images are scaled to a number of pixels between both."""
    image = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": processor_class,
        "size": {"shortest_edge": least_pixels, "longest_edge": most_pixels},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "do_rescale": True,
        "do_normalize": True,
        "do_resize": True,
        "do_convert_rgb": True,
        "resample": 3,
    }
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 25165824}}
    write(folder / "preprocessor_config.json", {**image, **_PATCHES})
    write(folder / "video_preprocessor_config.json", {**video, **_PATCHES})


def config(
    tokenizer: Any,
    width: int,
    *,
    tied: bool,
    sections: Sequence[int] = (8, 4, 4),
    text: Mapping[str, Any] = MappingProxyType({}),
    vision: Mapping[str, Any] = MappingProxyType({}),
) -> transformers.Qwen3VLConfig:
    """Return the configuration of a model with rows of ``width``, small but for what ``sections``, ``text`` and ``vision`` replace."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    rope = {"rope_type": "default", "mrope_section": list(sections), "mrope_interleaved": True}
    language = {
        "hidden_size": width,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {**rope, "rope_theta": 5e6},
        "rope_scaling": rope,
        "rope_theta": 5e6,
        "tie_word_embeddings": tied,
        **text,
    }
    images = {
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": width,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [0, 1, 2],
        "num_position_embeddings": 2304,
        **vision,
    }
    return transformers.Qwen3VLConfig(
        text_config=language,
        vision_config=images,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tied,
    )


def tokenizer(*, texts: Iterable[str] = (*TEXTS.values(), *PASSAGES), entries: int = VOCABULARY, **options: Any) -> Any:
    """Train a tokenizer of Qwen's kind for an embedding of so many rows: byte-level pairs, special tokens behind."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries - len(SPECIAL) - 8,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens(SPECIAL)
    return transformers.Qwen2TokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
        model_max_length=4096,
        **options,
    )


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file as published ones are."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
