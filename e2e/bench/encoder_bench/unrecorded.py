"""`python -m encoder_bench unrecorded PLUGIN FOLDER --shape S`: a checkpoint at a true shape, built and prepared for a benchmark.

The original library does not run: on a CPU, at true shapes, that takes longer than all benchmarks together. Such
an artifact can be served and measured; parity has nothing to compare it with, and says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from encoder_bench import linking_workload
from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import LabelSetSource, Request

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
    parser.add_argument(
        "--label-sets", nargs="*", type=int, default=[], help="of so many labels, for `linking --sets named`"
    )


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


def label_sets(folder: Path, counts: Sequence[int]) -> tuple[LabelSetSource, ...]:
    """Write sets of so many labels, the same that `linking` sends as text, and return where they are."""
    sources = []
    for count in sorted(set(counts)):
        path = folder / f"{linking_workload.set_name(count)}.json"
        path.write_text(json.dumps(linking_workload.label_sets(count, "same")[0]))
        sources.append(LabelSetSource(path.stem, str(path), hashlib.sha256(path.read_bytes()).hexdigest()))
    return tuple(sorted(sources, key=lambda source: source.name))


def main(given: argparse.Namespace) -> int:
    """Build, prepare, and print how long each took."""
    from encoder_checkpoints.gliner import FURTHER

    folder = given.folder.absolute()
    start = time.monotonic()
    source = build(folder / "source", given.plugin, given.shape)
    built = time.monotonic()
    plugin = catalog.get(FURTHER.get(given.plugin, given.plugin))
    wanted = Request(
        plugin=plugin,
        source=str(source),
        output=folder / "artifact",
        label_sets=label_sets(folder, given.label_sets),
    )
    done = prepare(wanted, Progress(), record)
    seconds = time.monotonic() - built
    print(
        f"{given.plugin} {given.shape}: built in {built - start:.0f} s, {done.bytes >> 20} MiB prepared in {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit("run `python -m encoder_bench unrecorded`")
