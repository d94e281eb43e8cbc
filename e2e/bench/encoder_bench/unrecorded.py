"""`python -m encoder_bench unrecorded PLUGIN FOLDER --shape S`: a checkpoint at a true shape, built and prepared for a benchmark.

The original library does not run: on a CPU, at true shapes, that takes longer than all benchmarks together. Such
an artifact can be served and measured; parity has nothing to compare it with, and says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

# so that texts of 512 words and 25 labels fit every checkpoint, whatever the published ones take
WORDS = 1024
POSITIONS = 2048


def record(
    plugin: Plugin,
    checkpoint: Path,
    auxiliary: Mapping[str, Path],
    cases: Sequence[Case],
    *,
    trust_remote_code: bool = False,
    parameters: Mapping[str, Value] | None = None,
) -> Recording:
    """Record one case whose output no library computed."""
    return Recording(
        cases=[{"id": "unrecorded"}],
        outputs={"unrecorded": {"zeros": np.zeros(1, np.float32)}},
        about={"library": "none: made for a benchmark"},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    from encoder_checkpoints.gliner import FURTHER

    parser.add_argument("plugin", choices=[*catalog.plugins(), *FURTHER], help="a plugin, or a further family of one")
    parser.add_argument("folder", type=Path, help="gets source/ and artifact/")
    parser.add_argument("--shape", default="tiny")


def build(folder: Path, plugin: str, shape: str) -> Path:
    """Write the checkpoint, and return its folder."""
    from encoder_bench import retrieval_checkpoint, visual_checkpoint
    from encoder_checkpoints import gliner, gliner2

    if plugin in retrieval_checkpoint.KINDS:
        return retrieval_checkpoint.build(folder, plugin, shape)
    if plugin in visual_checkpoint.KINDS:
        return visual_checkpoint.build(folder, plugin, shape)
    if plugin == "deberta_gliner2":
        return gliner2.build(folder, shape)
    positions = {} if plugin == "mt5_gliner" else {"max_position_embeddings": POSITIONS}
    return gliner.build(folder, plugin, shape, encoder=positions, max_len=WORDS)


def main(given: argparse.Namespace) -> int:
    """Build, prepare, and print how long each took."""
    from encoder_checkpoints.gliner import FURTHER

    folder = given.folder.absolute()
    start = time.monotonic()
    source = build(folder / "source", given.plugin, given.shape)
    built = time.monotonic()
    plugin = catalog.get(FURTHER.get(given.plugin, given.plugin))
    done = prepare(Request(plugin=plugin, source=str(source), output=folder / "artifact"), Progress(), record)
    seconds = time.monotonic() - built
    print(
        f"{given.plugin} {given.shape}: built in {built - start:.0f} s, {done.bytes >> 20} MiB prepared in {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit("run `python -m encoder_bench unrecorded`")
