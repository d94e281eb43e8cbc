"""Checkpoints of visual retrievers at true shapes with random weights, as users publish them: what the comparison measures.

Written with transformers alone, so that it needs neither a network nor a library of retrieval. The tokenizers are of the
true types, and have learned English from the interpreter's documentation, from which the queries are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from encoder_checkpoints import colbert_builder, qwen3_vl
from encoder_checkpoints.qwen3_vl import write
from encoder_plugins.models.collfm2.tests import tiny as lfm2_vl
from encoder_plugins.models.nemotron_colembed.tests import tiny as nemotron

# pieces that tokenizers learn: about as many tokens in a word as those of published checkpoints have
PIECES = 12_000
DIMENSIONS = 128
# of an A4 page at 144 dots per inch about 980 tokens are left
MOST_PIXELS = 1_003_520
# one tile has 256 tokens, as LFM2-VL's own
TILES = {
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "tile_size": 512,
    "max_tiles": 10,
    "size": {"height": 512, "width": 512},
}

# of Qwen3-VL-2B, with the narrower feed-forward blocks of a turbo checkpoint of 1.8 billion weights
_TURBO_TEXT = {
    "intermediate_size": 4096,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
}
_TURBO_VISION = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "deepstack_visual_indexes": [5, 11, 17],
}
# of Qwen3-VL-4B
_FOUR_BILLION_TEXT = {
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
}
_LFM2_TEXT = {
    "hidden_size": 1024,
    "intermediate_size": 4608,
    "block_ff_dim": 4608,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 65_536,
    "max_position_embeddings": 128_000,
    "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
}
_LFM2_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def build(folder: Path, plugin: str, shape: str) -> Path:
    """Write a checkpoint as users publish it, and return its folder.

    Args:
        folder: Where to; made if it is not there.
        plugin: One of `KINDS`.
        shape: `tiny`, or a true one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    KINDS[plugin](folder, shape)
    return folder


def _colqwen3(folder: Path, shape: str) -> None:
    large = _true(shape, "turbo")
    width, entries = (2048, PIECES) if large else (128, qwen3_vl.VOCABULARY)
    tokenizer = qwen3_vl.tokenizer(texts=topics.values(), entries=entries, padding_side="left")
    tokenizer.save_pretrained(folder)
    more: dict[str, Any] = {"sections": (24, 20, 20), "text": _TURBO_TEXT, "vision": _TURBO_VISION} if large else {}
    config = qwen3_vl.config(tokenizer, width, tied=True, **more)
    published = config.to_dict() | {"architectures": ["ColQwen3"], "model_type": "colqwen3", "dim": DIMENSIONS}
    write(folder / "config.json", published)
    pixels = {"most_pixels": MOST_PIXELS} if large else {}
    qwen3_vl.write_processors(folder, "ColQwen3Processor", **pixels)
    with torch.device("meta"):
        model = transformers.Qwen3VLModel(config)
    _save(folder, model, str, width)


def _collfm2(folder: Path, shape: str) -> None:
    large = _true(shape, "450m")
    tokenizer = colbert_builder.byte_level_tokenizer(
        topics.values(),
        lfm2_vl.SPECIAL,
        "<|startoftext|> $A",
        prefixes=(),
        vocabulary=PIECES if large else lfm2_vl.VOCABULARY,
        unk_token="<|unknown|>",
        pad_token="<|pad|>",
        bos_token="<|startoftext|>",
        eos_token="<|im_end|>",
    )
    tokenizer.save_pretrained(folder)
    more: dict[str, Any] = {"text": _LFM2_TEXT, "vision": _LFM2_VISION, "projector": 2560} if large else {}
    config = lfm2_vl.base_config(tokenizer.convert_tokens_to_ids("<image>"), **more)
    own = {"architectures": ["ColLFM2"], "model_type": "collfm2", "base_model": lfm2_vl.BASE, "dim": DIMENSIONS}
    width = config.text_config.hidden_size
    write(folder / "config.json", {**config.to_dict(), **own, "hidden_size": width})
    write(folder / "preprocessor_config.json", {**lfm2_vl.PROCESSOR, **(TILES if large else {})})
    write(folder / "processor_config.json", {"processor_class": "Lfm2VlProcessor"})
    with torch.device("meta"):
        model = transformers.Lfm2VlModel(config)
    # a level of names that newer versions of transformers leave out
    tower = ("vision_tower.", "vision_tower.vision_model.")

    def published(name: str) -> str:
        return f"model.{name if name.startswith(tower[1]) else name.replace(*tower, 1)}"

    _save(folder, model, published, width)


def _nemotron_colembed(folder: Path, shape: str) -> None:
    large = _true(shape, "4b")
    width, entries = (2560, PIECES) if large else (nemotron.WIDTH, qwen3_vl.VOCABULARY)
    tokenizer = qwen3_vl.tokenizer(
        texts=topics.values(), entries=entries, padding_side="right", chat_template=nemotron.TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    more: dict[str, Any] = (
        {"sections": (24, 20, 20), "text": _FOUR_BILLION_TEXT, "vision": _TURBO_VISION} if large else {}
    )
    config = qwen3_vl.config(tokenizer, width, tied=False, **more)
    nemotron.write_files(folder, config, **({"document_tokens": 8192, "most_pixels": MOST_PIXELS} if large else {}))
    with torch.device("meta"):
        model = transformers.Qwen3VLForConditionalGeneration(config)
    _save(folder, model, str, None)


def _true(shape: str, name: str) -> bool:
    if shape not in ("tiny", name):
        raise ValueError(f"the shapes are tiny and {name}, not {shape}")
    return shape == name


def _save(folder: Path, model: torch.nn.Module, name_of: Callable[[str], str], width: int | None) -> None:
    """Write random weights for a model without data, and for the projection of rows of ``width``, if there is one."""
    generator = torch.Generator().manual_seed(7)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        shapes = {name_of(name): tuple(value.shape) for name, value in model.named_parameters()}
        if width is not None:
            shapes |= {"custom_text_proj.weight": (DIMENSIONS, width), "custom_text_proj.bias": (DIMENSIONS,)}
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float32)
            if len(shape) == 1:
                values = drawn * 0.1 + float("norm" in name and name.endswith("weight"))
            else:
                values = drawn / drawn[0].numel() ** 0.5
            yield name, values.to(torch.bfloat16)

    save_file(dict(tensors()), folder / "model.safetensors", metadata={"format": "pt"})


KINDS: Mapping[str, Callable[[Path, str], None]] = MappingProxyType(
    {"colqwen3": _colqwen3, "collfm2": _collfm2, "nemotron_colembed": _nemotron_colembed}
)
