"""`encoder-plugins record`: record the reference outputs of an artifact again, and seal it again.

The original library reads the checkpoint as it was published, never what prep wrote for the engine. Where the two are the same
files, the artifact has them; otherwise the published files have to be given, and are compared with the digest in the manifest.

For artifacts of your own: what pins the old digest, as an EncoderModel's revision does, refuses the new one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.artifact import cases, label_sets, reference
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact.cases import Inputs, fingerprint
from encoder_plugins.artifact.manifest import Manifest
from encoder_plugins.artifact.staging import Staging, discard, locked, require_atomic_rename
from encoder_plugins.cli.prepare import add_report_arguments, report
from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, UnknownPlugin, Unsupported
from encoder_plugins.parity.protocol import Parity
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep import checkpoint_files, reference_environment
from encoder_plugins.prep.checkpoint import Checkpoint, SourceFile, configured, link, link_files
from encoder_plugins.prep.label_sets import cases as label_set_cases
from encoder_plugins.prep.pipeline import Prepared
from encoder_plugins.prep.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("output", type=Path, help="the prepared directory")
    parser.add_argument(
        "--inputs", type=Path, help="file with a JSON list of your own cases, recorded in addition to the built-in ones"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="folder of the published files; needed unless the engine loads these as they are",
    )
    parser.add_argument(
        "--auxiliary",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="folder of an auxiliary repository, in the order of `prepare`",
    )
    add_report_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Record, report the result, and return the exit status."""

    def work(progress: Progress) -> Prepared:
        inputs = () if arguments.inputs is None else cases.read(arguments.inputs)
        return record(
            arguments.output.absolute(),
            inputs,
            progress,
            given=arguments.inputs is not None,
            checkpoint=arguments.checkpoint,
            auxiliary=arguments.auxiliary,
        )

    return report(arguments, work)


def record(
    output: Path,
    inputs: Inputs,
    progress: Progress,
    *,
    given: bool = True,
    checkpoint: Path | None = None,
    auxiliary: Sequence[Path] = (),
) -> Prepared:
    """Replace the reference outputs of an artifact.

    Args:
        output: The artifact's folder.
        inputs: The user's own cases.
        progress: Reports each phase.
        given: Whether the user chose the cases, be they none.
        checkpoint: The folder of the published files; None where the artifact's model folder has them.
        auxiliary: The folders of the auxiliary repositories, in the order of the manifest.

    Raises:
        ChecksumMismatch: It is no artifact, or a damaged one, or the published files are other ones.
        Unsupported: Its plugin is not there, it has a user's cases that would be lost, or the published files are missing.
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
        for folder in (staging.artifact, staging.published):
            discard(folder)
        _collect_published(before, output, checkpoint, plugin, staging.published)
        further = _auxiliaries(before, plugin, auxiliary)
        for name in (artifact.MODEL, label_sets.FOLDER):
            link_files(output / name, staging.artifact / name)
        progress.start("reference")
        parity: Parity = resolve(plugin.parity)
        sets = label_sets.files(output / label_sets.FOLDER)
        recording = reference_environment.record(
            plugin,
            staging.published,
            further,
            [*parity.cases(staging.published, inputs), *label_set_cases(parity, sets)],
            trust_remote_code=bool(before.source.get("trust_remote_code")),
            parameters=before.source.get("parameters", {}),
        )
        reference.write(recording, staging.artifact)
        progress.start("seal")
        manifest = _seal(staging.artifact, before, inputs, recording.changed)
        progress.start("publish")
        staging.set_aside()
        staging.publish()
        progress.start("clean")
        staging.discard()
    return Prepared.of(output, manifest)


class _Folder:
    """The files of a folder, as a plugin selects from them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __iter__(self) -> Iterator[SourceFile]:
        for path in sorted(self._root.rglob("*")):
            if path.is_file():
                yield SourceFile(path=path.relative_to(self._root).as_posix(), size=path.stat().st_size)

    def read(self, path: str) -> bytes | None:
        file = self._root / path
        return file.read_bytes() if file.is_file() else None


def _collect_published(before: Manifest, output: Path, checkpoint: Path | None, plugin: Plugin, target: Path) -> None:
    """Link or copy the published files to ``target``, and compare them with those that prep took."""
    folder = output / artifact.MODEL if checkpoint is None else checkpoint.absolute()
    files: Checkpoint = resolve(plugin.checkpoint)
    try:
        selected = files.files(_Folder(folder))
    except (Unsupported, SourceFileNotFound):
        if checkpoint is not None:
            raise
        selected = None
    if selected is not None:
        code = selected.code if before.source.get("trust_remote_code") else ()
        taken = (*selected.files, *selected.pickles, *code)
        checkpoint_files.refuse_escapes(file.path for file in taken)
        for file in taken:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
            link((folder / file.path).resolve(), target / file.path)
    if selected is None or artifact.tree_digest(target) != before.source["published"]:
        if checkpoint is None:
            raise Unsupported(
                f"{output} holds files that prep converted: the original library needs the published ones, with --checkpoint"
            )
        raise ChecksumMismatch(f"{checkpoint} does not hold the files that {output} was prepared from")


def _auxiliaries(before: Manifest, plugin: Plugin, folders: Sequence[Path]) -> dict[str, Path]:
    """Name the folders of the auxiliary repositories, and compare them with those that prep took."""
    entries = before.source.get("auxiliary", [])
    if len(entries) != len(folders):
        raise Unsupported(
            f"the artifact was prepared with {len(entries)} auxiliary repositories; --auxiliary gives {len(folders)}"
        )
    found: dict[str, Path] = {}
    checkpoint = configured(plugin, before.source.get("parameters", {}))
    for entry, folder in zip(entries, folders, strict=True):
        name = entry.get("repo", str(folder.absolute()))
        if _auxiliary_digest(checkpoint, name, folder) != entry["files"]:
            raise ChecksumMismatch(f"{folder} does not hold the files that the artifact was prepared from")
        found[name] = folder.absolute()
    return found


def _auxiliary_digest(checkpoint: Checkpoint, name: str, folder: Path) -> str:
    """Return the digest of what prep takes of an auxiliary repository; that pickles are allowed was decided when it was prepared."""
    taken = checkpoint_files.auxiliary(checkpoint, name, list(_Folder(folder)), allow_pickle=True)
    return artifact.tree_digest(folder, only={file.path for file in taken})


def _seal(folder: Path, before: Manifest, inputs: Inputs, changed: Mapping[str, Any]) -> Manifest:
    """Write the new manifest: of the same checkpoint, as the same prep made it."""
    source: Mapping[str, Any] = {
        **{name: value for name, value in before.source.items() if name not in ("inputs", "changed")},
        **({"inputs": fingerprint(inputs)} if inputs else {}),
        **({"changed": dict(changed)} if changed else {}),
    }
    manifest = artifact.build(
        folder,
        key=before.key,
        plugin=before.plugin,
        prep_version=before.prep_version,
        licence_note=before.licence_note,
        source=source,
    )
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())
    return manifest
