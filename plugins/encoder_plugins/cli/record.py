"""`encoder-plugins record`: asks the original library anew, and seals the artifact again.

For an artifact of one's own: whoever pins its digest, as an EncoderModel's revision does, keeps the old one, and refuses this.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.artifact import cases
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact.cases import Inputs, fingerprint
from encoder_plugins.artifact.manifest import Manifest
from encoder_plugins.artifact.staging import Staging, discard, locked, require_atomic_rename
from encoder_plugins.cli.prepare import add_report_arguments, report
from encoder_plugins.errors import UnknownPlugin, Unsupported
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.pipeline import Prepared
from encoder_plugins.prep.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("output", type=Path, help="the prepared directory")
    parser.add_argument("--inputs", type=Path, help="JSON list of your own cases, recorded beside the built-in ones")
    add_report_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Record, say what came of it, and return the exit status."""

    def work(progress: Progress) -> Prepared:
        inputs = () if arguments.inputs is None else cases.read(arguments.inputs)
        return record(arguments.output.absolute(), inputs, progress, given=arguments.inputs is not None)

    return report(arguments, work)


def record(output: Path, inputs: Inputs, progress: Progress, *, given: bool = True) -> Prepared:
    """Replace the recorded reference of an artifact.

    Args:
        output: The artifact's folder.
        inputs: The user's own cases.
        progress: Is told of each phase.
        given: Whether the user said which cases, be they none.

    Raises:
        ChecksumMismatch: It is no artifact, or a damaged one.
        Unsupported: Its plugin is not there, or it has cases of a user's that would be lost.
    """
    progress.start("check")
    before = artifact.verify(output)
    if before.source.get("inputs") and not given:
        raise Unsupported(
            f"{output} was recorded with cases of your own: give them again with --inputs, or a file that holds []"
        )
    try:
        plugin = catalog.get(before.plugin)
    except UnknownPlugin as error:
        raise Unsupported(str(error)) from error
    staging = Staging.beside(output)
    with locked(staging, lambda: progress.start("waiting", message="another prep holds the lock of this artifact")):
        require_atomic_rename(staging)
        discard(staging.artifact)
        _link(output / artifact.MODEL, staging.artifact / artifact.MODEL)
        progress.start("reference")
        # imported here: it brings numpy, and the recorder torch
        from encoder_plugins.artifact.reference import write

        trusted = {"trust_remote_code": True} if before.source.get("trust_remote_code") else {}
        write(resolve(plugin.recorder)(staging.artifact / artifact.MODEL, inputs, **trusted), staging.artifact)
        progress.start("seal")
        manifest = _seal(staging.artifact, before, inputs)
        progress.start("publish")
        staging.set_aside()
        staging.publish()
        progress.start("clean")
        staging.discard()
    return Prepared.of(output, manifest)


def _seal(folder: Path, before: Manifest, inputs: Inputs) -> Manifest:
    """Write the new manifest: of the same checkpoint, as the same prep made it."""
    source: Mapping[str, Any] = {
        **{name: value for name, value in before.source.items() if name != "inputs"},
        **({"inputs": fingerprint(inputs)} if inputs else {}),
    }
    manifest = artifact.build(
        folder, key=before.key, plugin=before.plugin, prep_version=before.prep_version, source=source
    )
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())
    return manifest


def _link(source: Path, target: Path) -> None:
    """Make the same tree again, of the same files where the volume has hard links."""

    def put(file: str, copy: str) -> None:
        try:
            os.link(file, copy)
        except OSError:
            shutil.copyfile(file, copy)

    shutil.copytree(source, target, copy_function=put)
