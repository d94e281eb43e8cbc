"""A tiny ColQwen3 checkpoint with random weights, saved by the library's own class.

``save`` runs in the library's environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from encoder_plugins.families.vision.cases import PASSAGES, TEXTS

NAME, VOCABULARY, WIDTH, DIMENSIONS = "colqwen3-tiny", 512, 128, 48
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
# 64 to 300 tokens
LEAST_PIXELS, MOST_PIXELS = 65_536, 307_200


def build(folder: Path) -> Path:
    """Write the checkpoint below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sauerkrautlm_colpali", "encoder_plugins.models.colqwen3.tests.tiny:save")
    return Path(shutil.copytree(cached / NAME, folder / NAME))


def save(folder: Path) -> None:
    """Save the checkpoint below ``folder``, with the library."""
    from sauerkrautlm_colpali import ColQwen3

    saved = folder / NAME
    saved.mkdir(parents=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(saved)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    torch.manual_seed(7)
    model = ColQwen3(_config(ids))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.3 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5
            parameter.copy_(torch.randn_like(parameter) * size + float("norm" in name and name.endswith("weight")))
    model.save_pretrained(saved)
    config = json.loads((saved / "config.json").read_text())
    config |= {"architectures": ["ColQwen3"], "model_type": "colqwen3", "dim": DIMENSIONS}
    _write(saved / "config.json", config)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "ColQwen3Processor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "do_rescale": True,
        "do_normalize": True,
        "do_resize": True,
        "do_convert_rgb": True,
        "resample": 3,
    }
    _write(saved / "preprocessor_config.json", processor)
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 25165824}}
    _write(
        saved / "video_preprocessor_config.json", {**video, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    )


def _config(ids: dict[str, int]) -> transformers.Qwen3VLConfig:
    sections = {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True}
    text = {
        "hidden_size": WIDTH,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {**sections, "rope_theta": 5e6},
        "rope_scaling": sections,
        "rope_theta": 5e6,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [0, 1, 2],
        "num_position_embeddings": 2304,
    }
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    config.dim = DIMENSIONS
    return config


def _tokenizer() -> Any:
    """Train a tokenizer of Qwen's kind: byte-level pairs, special tokens behind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - 8,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS.values(), *PASSAGES], trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return transformers.Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
        model_max_length=4096,
        padding_side="left",
    )


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def line(width: int, height: int) -> bytes:
    """Return a PNG of black pixels with one bit each: as few bytes as a file of that size can have."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    packer = zlib.compressobj(9)
    row = bytes(1 + -(-width // 8))
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(name, content) for name, content in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )
