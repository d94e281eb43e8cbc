"""Turn a published checkpoint into an artifact, whole and checked, or leave none.

    lock -> list -> select -> download -> check -> convert -> record reference outputs -> manifest -> rename

Until the rename, everything is in a staging folder on the same volume (``artifact.staging``); the next attempt uses what
is there. Every way to fail has a code of its own, which the operator turns into a condition's reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact import reference
from encoder_plugins.artifact.cases import fingerprint
from encoder_plugins.artifact.manifest import Manifest
from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.artifact.staging import (
    OUT_OF_SPACE,
    Staging,
    discard,
    locked,
    require_atomic_rename,
    require_space,
)
from encoder_plugins.errors import ChecksumMismatch, InsufficientSpace, PrepareError, Transient, Unsupported
from encoder_plugins.parameters import Value, json_values
from encoder_plugins.parity.protocol import Parity
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep import checkpoint_files, checksums, label_sets, reference_environment
from encoder_plugins.prep.checkpoint import Checkpoint, Selection, SourceFile, configured, link
from encoder_plugins.prep.label_sets import LabelSets
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.sources import base
from encoder_plugins.prep.sources.base import Source
from encoder_plugins.prep.sources.download_ledger import Received

# of files that are left out, a progress line names so many
_NAMED = 5


class Record(Protocol):
    """Records reference outputs; ``reference_environment.record`` is the one that uses the original library."""

    def __call__(
        self,
        plugin: Plugin,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool,
        parameters: Mapping[str, Value],
    ) -> Recording:
        """Return the outputs of every case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A finished artifact, as the termination message reports it."""

    digest: str
    reference: str
    revision: str
    bytes: int
    files: int
    cases: int

    @classmethod
    def of(cls, output: Path, manifest: Manifest) -> Prepared:
        """Describe an artifact that is known to be intact."""
        return cls(
            digest=manifest.digest,
            reference=manifest.reference_digest,
            revision=manifest.source["revision"],
            bytes=manifest.size,
            files=len(manifest.files),
            cases=len(json.loads((output / artifact.CASES).read_bytes())),
        )


def prepare(request: Request, progress: Progress, record: Record | None = None) -> Prepared:
    """Prepare an artifact, or find it prepared.

    Args:
        request: What to prepare.
        progress: Reports each phase.
        record: Records the reference outputs; None runs the plugin's recorder in its library's environment.

    Raises:
        PrepareError: There is no artifact, and ``code`` says why. What another attempt can use is kept.
    """
    staging = Staging.beside(request.output)
    # what a prep left that was killed after it had published is cleaned up by the next one
    if (done := _find(request)) is not None and not staging.is_there():
        return done
    try:
        with locked(staging, lambda: progress.start("waiting", message="another prep holds the lock of this artifact")):
            # the process that held the lock may have finished it
            if (done := _find(request)) is None:
                done = _attempt(request, staging, progress, record or reference_environment.record)
            progress.start("clean")
            staging.discard()
            return done
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        raise InsufficientSpace(f"the volume is full, or a quota used up: {error.strerror}") from error


def _find(request: Request) -> Prepared | None:
    """Find the artifact if it is there and intact; None where it is missing, or damaged and ours to replace.

    Raises:
        ChecksumMismatch: Something is in its place that cannot be identified as this artifact.
        Unsupported: Another artifact is in its place.
    """
    output = request.output
    if not os.path.lexists(output) or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        manifest = artifact.read(output)
    except ChecksumMismatch as error:
        raise ChecksumMismatch(f"{error}; it is left as it is: remove it to have it prepared again") from error
    found = _identity(manifest)
    wanted = {
        "key": output.name,
        "plugin": request.plugin.name,
        # of a branch, only the artifact knows which commit it was
        "revision": found["revision"] if request.allow_mutable_revision else request.revision or found["revision"],
        "auxiliary": _pins(request),
        "inputs": fingerprint(request.inputs),
        "trust_remote_code": request.trust_remote_code,
        "parameters": json_values(request.parameters),
        "label_sets": {one.name: one.sha256 for one in request.label_sets},
    }
    if found != wanted:
        different = ", ".join(f"{name}: {found[name]!r}" for name in wanted if found[name] != wanted[name])
        raise Unsupported(f"{output} holds another artifact ({different}): choose another output")
    try:
        # garbage collection leaves alone what was used lately
        with contextlib.suppress(OSError):
            os.utime(output / artifact.MANIFEST)
        return Prepared.of(output, artifact.verify(output))
    except (ChecksumMismatch, FileNotFoundError):
        return None


def _identity(manifest: Manifest) -> dict[str, Any]:
    """Return what makes an artifact this one and no other."""
    return {
        "key": manifest.key,
        "plugin": manifest.plugin,
        "revision": manifest.source.get("revision"),
        # a folder's digest is known only after listing it
        "auxiliary": [
            (entry["repo"], entry["revision"]) if entry.get("kind") == "huggingFace" else None
            for entry in manifest.source.get("auxiliary", [])
        ],
        "inputs": manifest.source.get("inputs", ""),
        "trust_remote_code": manifest.source.get("trust_remote_code", False),
        "parameters": manifest.source.get("parameters", {}),
        "label_sets": {one["name"]: one["sha256"] for one in manifest.source.get("label_sets", [])},
    }


def _pins(request: Request) -> list[tuple[str, str | None] | None]:
    return [
        None if further.source.startswith("/") else (further.source, further.revision) for further in request.auxiliary
    ]


def _attempt(request: Request, staging: Staging, progress: Progress, record: Record) -> Prepared:
    """Make the artifact; on a failure, keep what another attempt can use."""
    try:
        preparation = _Preparation(request, staging, progress, record)
        try:
            return preparation.run()
        finally:
            preparation.close()
    except (Transient, ChecksumMismatch):
        # bytes that were wrong are removed where that is found
        raise
    except PrepareError:
        staging.discard()
        raise
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            staging.discard()
        raise


class _Listing:
    """The files of a source; a file that the plugin reads before it selects is downloaded to its place."""

    def __init__(self, preparation: _Preparation, files: Sequence[SourceFile]) -> None:
        self._preparation = preparation
        self._by_path = {file.path: file for file in files}

    def __iter__(self) -> Iterator[SourceFile]:
        return iter(self._by_path.values())

    def read(self, path: str) -> bytes | None:
        file = self._by_path.get(path)
        return None if file is None else self._preparation.bring_listed(file).read_bytes()


class _Preparation:
    """One attempt, under the lock."""

    def __init__(self, request: Request, staging: Staging, progress: Progress, record: Record) -> None:
        self._request = request
        self._staging = staging
        self._progress = progress
        self._record = record
        self._format: Checkpoint = configured(request.plugin, request.parameters)
        if request.trust_remote_code and not self._format.runs_code:
            raise Unsupported(f"{request.plugin.name} never runs a checkpoint's own code: omit --trust-remote-code")
        self._label_sets = LabelSets(request, staging)
        self._published = staging.published
        self._source = base.of(request, staging)
        self._further = [base.further(request, auxiliary, staging) for auxiliary in request.auxiliary]
        self._received = Received(staging.received)
        self._taken: tuple[SourceFile, ...] = ()
        self._auxiliary: dict[str, Path] = {}

    def run(self) -> Prepared:
        """Go from nothing, or from what an earlier attempt left, to the visible artifact."""
        require_atomic_rename(self._staging)
        self._label_sets.bring(self._progress)
        self._bring_auxiliaries()
        self._progress.start("listing")
        listing = self._source.listing(self._progress)
        checkpoint_files.refuse_escapes(file.path for file in listing)
        selected = self._select(listing)
        require_space(self._staging, selected.size)
        self._taken = (*selected.files, *selected.code, *selected.pickles)
        self._clear()
        left_out = checkpoint_files.left_out(listing, selected)
        readable = self._download(selected, [file.path for file in listing], left_out)
        self._convert(readable)
        changed = self._record_reference()
        return self._publish(changed)

    def close(self) -> None:
        """Close connections."""
        for source in (self._source, *(further for _, further in self._further)):
            source.close()

    def bring_listed(self, file: SourceFile) -> Path:
        """Download a file to its place, and return that."""
        target = self._published / file.path
        self._bring(self._source, self._source.completed(file, self._progress), target)
        return target

    def _select(self, listing: Sequence[SourceFile]) -> Selection:
        """Let the plugin select files, and hold it to the rules of the platform."""
        selected = self._format.files(_Listing(self, listing))
        if not self._request.trust_remote_code:
            selected = replace(selected, code=())
        checkpoint_files.enforce(selected, listing, allow_pickle=self._request.allow_pickle)
        return replace(
            selected,
            files=self._completed(selected.files),
            code=self._completed(selected.code),
            pickles=self._completed(selected.pickles),
        )

    def _completed(self, files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
        return tuple(self._source.completed(file, self._progress) for file in files)

    def _clear(self) -> None:
        """Remove what an earlier attempt left and this one makes again."""
        wanted = {self._published / file.path for file in self._taken}
        for path in [path for path in self._published.rglob("*") if not path.is_dir() and path not in wanted]:
            path.unlink()
        for folder in (self._staging.artifact, self._staging.unpickled):
            discard(folder)

    def _bring_auxiliaries(self) -> None:
        """Download what is taken of the auxiliary repositories, all of it small."""
        discard(self._staging.auxiliary)
        for number, (name, source) in enumerate(self._further):
            self._progress.start("listing", message=f"auxiliary {name}")
            listing = source.listing(self._progress)
            checkpoint_files.refuse_escapes(file.path for file in listing)
            folder = self._staging.auxiliary / str(number)
            taken = checkpoint_files.auxiliary(self._format, name, listing, allow_pickle=self._request.allow_pickle)
            chosen = [source.completed(file, self._progress) for file in taken]
            self._progress.start("download", sum(file.size for file in chosen))
            for file in chosen:
                self._bring(source, file, folder / file.path)
                if file.path.endswith(".json"):
                    checkpoint_files.refuse_code(file.path, (folder / file.path).read_bytes(), [])
            self._auxiliary[name] = folder

    def _download(self, selected: Selection, listing: list[str], left_out: Sequence[str]) -> Path:
        """Download every file; what a checkpoint can be refused for comes before its largest files.

        Returns:
            The checkpoint with its weights as safetensors: the published folder, or one with converted pickles.
        """
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        details = {"leftOut": ", ".join(left_out[:_NAMED]) + more} if left_out else {}
        self._progress.start("download", sum(file.size for file in self._taken), **details)
        large = [file for file in selected.files if checkpoint_files.is_root_weights(file)]
        for file in (*selected.files, *selected.code):
            if file not in large:
                self._bring(self._source, file, self._published / file.path)
        if not self._request.trust_remote_code and not selected.code_is_optional:
            for path in (file.path for file in selected.files if file.path.endswith(".json")):
                checkpoint_files.refuse_code(path, (self._published / path).read_bytes(), listing)
        taken = [file.path for file in selected.files]
        for path in taken:
            if Path(path).name == checkpoint_files.INDEX:
                checkpoint_files.require_shards(path, (self._published / path).read_bytes(), taken)
        # a module's own weights may be pickled, and the check reads their shapes
        early = all("/" not in file.path for file in selected.pickles)
        if early:
            self._format.check(self._published, self._auxiliary)
        for file in (*large, *selected.pickles):
            self._bring(self._source, file, self._published / file.path)
        if not selected.pickles:
            return self._published
        readable = self._unpickle(selected.pickles)
        if not early:
            self._format.check(readable, self._auxiliary)
        return readable

    def _bring(self, source: Source, file: SourceFile, target: Path) -> None:
        """Fetch a file, unless an earlier attempt has."""
        if target.is_file():
            try:
                if (known := self._received.known(file)) is None:
                    raise ChecksumMismatch(f"{file.path} may be another content than the one that is listed")
                checksums.check(known, target)
            except ChecksumMismatch:
                target.unlink()
            else:
                self._progress.skip(target.stat().st_size)
                return
        name = file.sha256 or file.git_sha1 or hashlib.sha256(f"{file.path}\0{file.tag}".encode()).hexdigest()
        self._staging.partial.mkdir(exist_ok=True)
        partial = self._staging.partial / name
        source.fetch(file, partial, self._progress)
        if partial.stat().st_size < checkpoint_files.LARGEST_POINTER:
            checkpoint_files.refuse_pointer(file.path, partial.read_bytes())
        self._received.note(file, partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)

    def _unpickle(self, pickles: Iterable[SourceFile]) -> Path:
        """Write the checkpoint again with pickled weights as safetensors, folder by folder; return where it is."""
        from encoder_plugins.prep.pickle_conversion import convert_folder

        self._progress.start("convert")
        readable = self._staging.unpickled
        replaced = {file.path for file in pickles}
        for file in self._taken:
            if file.path not in replaced:
                (readable / file.path).parent.mkdir(parents=True, exist_ok=True)
                link(self._published / file.path, readable / file.path)
        folders: defaultdict[Path, dict[Path, Path]] = defaultdict(dict)
        for path in sorted(replaced):
            target = readable / checkpoint_files.converted_name(path)
            folders[target.parent][self._published / path] = target
        for files in folders.values():
            convert_folder(files)
        return readable

    def _convert(self, readable: Path) -> None:
        """Let the plugin write the folder that the engine loads."""
        self._progress.start("convert")
        model = self._staging.artifact / artifact.MODEL
        model.mkdir(parents=True)
        self._format.convert(readable, self._auxiliary, model)
        self._label_sets.seal(self._format, model)

    def _record_reference(self) -> Mapping[str, Any]:
        """Record what the original library computes from the published files; return what had to be changed for it."""
        self._progress.start("reference")
        request = self._request
        parity: Parity = resolve(request.plugin.parity)
        recording = self._record(
            request.plugin,
            self._published,
            self._auxiliary,
            [*parity.cases(self._published, request.inputs), *label_sets.cases(parity, self._label_sets.files)],
            trust_remote_code=request.trust_remote_code,
            parameters=request.parameters,
        )
        reference.write(recording, self._staging.artifact)
        return recording.changed

    def _publish(self, changed: Mapping[str, Any]) -> Prepared:
        """Write the manifest and make the artifact visible."""
        self._progress.start("seal")
        output, plugin = self._request.output, self._request.plugin
        manifest = artifact.build(
            self._staging.artifact,
            key=output.name,
            plugin=plugin.name,
            prep_version=plugin.prep_version,
            licence_note=plugin.licence_note,
            source=self._describe(changed),
        )
        (self._staging.artifact / artifact.MANIFEST).write_bytes(manifest.encode())
        self._progress.start("publish")
        # there is something to replace only where `_find` found this very artifact damaged
        if os.path.lexists(output):
            self._staging.set_aside()
        self._staging.publish()
        return Prepared.of(output, manifest)

    def _describe(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return where everything came from."""
        described = self._source.describe()
        # a source without revisions is identified by what came
        described.setdefault("revision", self._received.digest(self._taken))
        described["published"] = artifact.tree_digest(self._published)
        if self._further:
            described["auxiliary"] = [
                {**source.describe(), "files": artifact.tree_digest(self._auxiliary[name])}
                for name, source in self._further
            ]
        if self._request.trust_remote_code:
            described["trust_remote_code"] = True
        if self._request.parameters:
            described["parameters"] = json_values(self._request.parameters)
        if self._request.label_sets:
            described["label_sets"] = self._label_sets.describe()
        if self._request.inputs:
            described["inputs"] = fingerprint(self._request.inputs)
        if changed:
            described["changed"] = dict(changed)
        return described
