"""A tiny ColLFM2 checkpoint with random weights, and the repository of its base.

``save`` runs in the library's environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from encoder_checkpoints import colbert_builder
from encoder_plugins.families.vision.cases import PASSAGES, TEXTS

NAME, BASE_NAME, BASE = "collfm2-tiny", "base", "LiquidAI/LFM2-VL-450M"
VOCABULARY, WIDTH, DIMENSIONS, TILES = 640, 128, 128, 6
LABELS = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)]
SPECIAL = [
    *("<|pad|>", "<|unknown|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>", "<image>"),
    *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *LABELS),
]
# a tile has 64 tokens, and one view 16 to 64
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Lfm2VlImageProcessorFast",
    "processor_class": "Lfm2VlProcessor",
    "downsample_factor": 2,
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": TILES,
    "use_thumbnail": True,
    "min_image_tokens": 16,
    "max_image_tokens": 64,
    "encoder_patch_size": 16,
    "tile_size": 256,
    "max_pixels_tolerance": 2.0,
    "do_resize": True,
    "size": {"height": 256, "width": 256},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_pad": True,
    "return_row_col_info": True,
}


def build(folder: Path, *, whole: bool = True) -> tuple[Path, Path]:
    """Write the checkpoint and its base below ``folder``, and return where they are.

    Args:
        folder: Where they go.
        whole: Whether the checkpoint has the configuration of the base, or names it only.
    """
    from encoder_checkpoints.original import built

    cached = built("sauerkrautlm_colpali", "encoder_plugins.models.collfm2.tests.tiny:save")
    checkpoint, base = (Path(shutil.copytree(cached / name, folder / name)) for name in (NAME, BASE_NAME))
    if whole:
        values = {
            name: json.loads((path / "config.json").read_text()) for name, path in (("own", checkpoint), ("base", base))
        }
        _write(checkpoint / "config.json", {**values["base"], **values["own"]})
    return checkpoint, base


def save(folder: Path) -> None:
    """Save the checkpoint and its base below ``folder``, as the library does it."""
    checkpoint, base = folder / NAME, folder / BASE_NAME
    for path in (checkpoint, base):
        path.mkdir(parents=True)
    tokenizer = colbert_builder.byte_level_tokenizer(
        [*TEXTS.values(), *PASSAGES],
        SPECIAL,
        "<|startoftext|> $A",
        prefixes=(),
        vocabulary=VOCABULARY,
        unk_token="<|unknown|>",
        pad_token="<|pad|>",
        bos_token="<|startoftext|>",
        eos_token="<|im_end|>",
    )
    tokenizer.save_pretrained(checkpoint)
    config = base_config(tokenizer.convert_tokens_to_ids("<image>"))
    torch.manual_seed(7)
    model = transformers.Lfm2VlForConditionalGeneration(config)
    projection = torch.nn.Linear(WIDTH, DIMENSIONS)
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *projection.named_parameters()]:
            size = 0.3 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5
            parameter.copy_(torch.randn_like(parameter) * size + float("norm" in name and name.endswith("weight")))
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors |= {f"custom_text_proj.{name}": value for name, value in projection.state_dict().items()}
    save_file(
        {name: value.to(torch.bfloat16).contiguous() for name, value in tensors.items()},
        checkpoint / "model.safetensors",
        metadata={"format": "pt"},
    )
    _write(base / "config.json", config.to_dict())
    own = {"architectures": ["ColLFM2"], "model_type": "collfm2", "base_model": BASE}
    _write(checkpoint / "config.json", {**own, "dim": DIMENSIONS, "hidden_size": WIDTH})
    _write(checkpoint / "preprocessor_config.json", PROCESSOR)
    _write(checkpoint / "processor_config.json", {"processor_class": "Lfm2VlProcessor"})


def base_config(
    image_token: int,
    *,
    text: Mapping[str, Any] = MappingProxyType({}),
    vision: Mapping[str, Any] = MappingProxyType({}),
    projector: int = 96,
) -> transformers.Lfm2VlConfig:
    """Return the configuration of the base, small but for what ``text``, ``vision`` and ``projector`` (its inner width) replace."""
    language = {
        "model_type": "lfm2",
        "hidden_size": WIDTH,
        "intermediate_size": 256,
        "block_ff_dim": 256,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "pad_token_id": SPECIAL.index("<|pad|>"),
        "bos_token_id": SPECIAL.index("<|startoftext|>"),
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "norm_eps": 1e-5,
        **text,
    }
    images = {
        "model_type": "siglip2_vision_model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_patches": 256,
        "patch_size": 16,
        "vision_use_head": False,
        **vision,
    }
    return transformers.Lfm2VlConfig(
        text_config=language,
        vision_config=images,
        image_token_id=image_token,
        projector_hidden_size=projector,
        projector_use_layernorm=True,
        downsample_factor=2,
    )


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
