"""A tiny ColQwen3 checkpoint with random weights, saved by the library's own class.

``save`` runs in the library's environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

NAME, WIDTH, DIMENSIONS = "colqwen3-tiny", 128, 48


def build(folder: Path) -> Path:
    """Write the checkpoint below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sauerkrautlm_colpali", "encoder_plugins.models.colqwen3.tests.tiny:save")
    return Path(shutil.copytree(cached / NAME, folder / NAME))


def save(folder: Path) -> None:
    """Save the checkpoint below ``folder``, with the library."""
    from sauerkrautlm_colpali import ColQwen3

    from encoder_checkpoints import qwen3_vl as parts

    saved = folder / NAME
    saved.mkdir(parents=True)
    tokenizer = parts.tokenizer(padding_side="left")
    tokenizer.save_pretrained(saved)
    config = parts.config(tokenizer, WIDTH, tied=True)
    config.dim = DIMENSIONS
    model = ColQwen3(config)
    parts.draw(model, 7)
    model.save_pretrained(saved)
    published = json.loads((saved / "config.json").read_text())
    published |= {"architectures": ["ColQwen3"], "model_type": "colqwen3", "dim": DIMENSIONS}
    parts.write(saved / "config.json", published)
    parts.write_processors(saved, "ColQwen3Processor")


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
