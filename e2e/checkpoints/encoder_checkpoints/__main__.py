"""`python -m encoder_checkpoints gliner PLUGIN FOLDER`: write a checkpoint to try things with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Build one checkpoint and print its folder."""
    from encoder_checkpoints import gliner

    parser = argparse.ArgumentParser(prog="encoder_checkpoints", description="Build checkpoints with random weights.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("gliner", help="a GLiNER checkpoint, as published")
    kind.add_argument("plugin", choices=(*gliner.PLUGINS, *gliner.FURTHER))
    kind.add_argument("folder", type=Path)
    kind.add_argument("--shape", default="tiny", help="tiny, or a true one of the plugin's family")
    kind.add_argument("--seed", type=int, default=0)
    kind.add_argument("--pickle", action="store_true", help="weights as pytorch_model.bin")
    kind.add_argument("--auxiliary", type=Path, help="put tokenizer and encoder configuration into this folder instead")
    given = parser.parse_args(arguments)
    shapes = gliner.FAMILIES[given.plugin].shapes
    if given.shape not in shapes:
        parser.error(f"{given.plugin} has the shapes {', '.join(shapes)}")
    weights = "pickle" if given.pickle else "safetensors"
    print(
        gliner.build(
            given.folder, given.plugin, given.shape, seed=given.seed, weights=weights, auxiliary=given.auxiliary
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
