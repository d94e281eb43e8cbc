"""The prep Job: a checkpoint becomes an artifact, whole and checked, or nothing at all.

    lock -> list -> choose -> download -> check -> convert -> record the original library -> manifest -> rename

Until the rename, everything is in a staging folder on the same volume (`staging`); the next attempt uses what is there.
Every way to fail has a code of its own, which the operator turns into a condition's reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encoder_plugins import models
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact.cases import fingerprint
from encoder_plugins.artifact.manifest import Manifest
from encoder_plugins.artifact.staging import (
    OUT_OF_SPACE,
    Staging,
    discard,
    locked,
    require_atomic_rename,
    require_space,
)
from encoder_plugins.errors import ChecksumMismatch, InsufficientSpace, PrepareError, Transient, Unsupported
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep import checkpoint_files, checksums
from encoder_plugins.prep.checkpoint_files import MODULES, Selection, SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.sources import base
from encoder_plugins.prep.sources.base import Source
from encoder_plugins.prep.sources.download_ledger import Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A finished artifact, as the termination message tells it."""

    digest: str
    reference: str
    revision: str
    bytes: int
    files: int
    cases: int

    @classmethod
    def of(cls, output: Path, manifest: Manifest) -> Prepared:
        """Describe an artifact that is known to be sound."""
        return cls(
            digest=manifest.digest,
            reference=manifest.reference_digest,
            revision=manifest.source["revision"],
            bytes=manifest.size,
            files=len(manifest.files),
            cases=len(json.loads((output / artifact.CASES).read_bytes())),
        )


def prepare(request: Request, progress: Progress) -> Prepared:
    """Prepare an artifact, or find it prepared.

    Raises:
        PrepareError: There is no artifact, and `code` says why. What another attempt can use is kept.
    """
    staging = Staging.beside(request.output)
    # what a prep left that was killed after it had published is cleaned up by the next one
    if (done := _find(request)) is not None and not staging.is_there():
        return done
    try:
        with locked(staging, lambda: progress.start("waiting", message="another prep holds the lock of this artifact")):
            # whoever held the lock may have finished it
            if (done := _find(request)) is None:
                done = _attempt(request, staging, progress)
            progress.start("clean")
            staging.discard()
            return done
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        raise InsufficientSpace(f"the volume is full, or a quota used up: {error.strerror}") from error


def _find(request: Request) -> Prepared | None:
    """Find the artifact if it is there and sound; None where it is missing, or damaged and ours to replace.

    Raises:
        ChecksumMismatch: Something is in its place that can't be told to be this artifact.
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
    }
    if found != wanted:
        different = ", ".join(f"{name}: {found[name]!r}" for name in wanted if found[name] != wanted[name])
        raise Unsupported(f"{output} holds another artifact ({different}): choose another output")
    try:
        # whoever collects what nobody wants leaves what was looked at lately
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
        # a folder's digest is known to who lists it only
        "auxiliary": [
            (entry["repo"], entry["revision"]) if entry.get("kind") == "huggingFace" else None
            for entry in manifest.source.get("auxiliary", [])
        ],
        "inputs": manifest.source.get("inputs", ""),
        "trust_remote_code": manifest.source.get("trust_remote_code", False),
    }


def _pins(request: Request) -> list[tuple[str, str | None] | None]:
    return [
        None if further.source.startswith("/") else (further.source, further.revision) for further in request.auxiliary
    ]


def _attempt(request: Request, staging: Staging, progress: Progress) -> Prepared:
    """Make the artifact; on a failure, keep what another attempt can use."""
    try:
        preparation = _Preparation(request, staging, progress)
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


class _Preparation:
    """One attempt, under the lock."""

    def __init__(self, request: Request, staging: Staging, progress: Progress) -> None:
        self._request = request
        self._staging = staging
        self._progress = progress
        self._hooks = hooks_of(request.plugin)
        if request.trust_remote_code and not self._hooks.runs_code:
            raise Unsupported(
                f"{request.plugin.name} never runs a checkpoint's own code: leave --trust-remote-code out"
            )
        self._model = staging.artifact / artifact.MODEL
        # what is converted stays beside the artifact, so that the next attempt finds it as it came
        self._checkpoint = staging.checkpoint if self._hooks.convert else self._model
        self._source = base.of(request, staging)
        self._further = [base.further(request, auxiliary, staging) for auxiliary in request.auxiliary]
        self._received = Received(staging.received)
        self._taken: tuple[SourceFile, ...] = ()
        self._auxiliary: dict[str, Path] = {}

    def run(self) -> Prepared:
        """Go from nothing, or from what an earlier attempt left, to the visible artifact."""
        require_atomic_rename(self._staging)
        self._bring_auxiliaries()
        self._progress.start("listing")
        listing = self._source.listing(self._progress)
        checkpoint_files.refuse_escapes(file.path for file in listing)
        chosen = self._choose(listing)
        require_space(self._staging, chosen.size)
        self._taken = (*chosen.files, *chosen.pickles)
        self._clear(chosen)
        self._download(chosen, [file.path for file in listing])
        self._transform()
        self._record()
        return self._publish()

    def close(self) -> None:
        """Let go of connections."""
        for source in (self._source, *(further for _, further in self._further)):
            source.close()

    def _choose(self, listing: Iterable[SourceFile]) -> Selection:
        """Choose the files to take, which the checkpoint's own list of modules decides."""
        by_path = {file.path: file for file in listing}
        modules = None
        if MODULES in by_path:
            self._bring(
                self._source, self._source.completed(by_path[MODULES], self._progress), self._checkpoint / MODULES
            )
            modules = (self._checkpoint / MODULES).read_bytes()
        chosen = checkpoint_files.select(
            tuple(by_path.values()),
            modules,
            allow_pickle=self._request.allow_pickle,
            code=self._request.trust_remote_code,
        )
        return replace(chosen, files=self._completed(chosen.files), pickles=self._completed(chosen.pickles))

    def _completed(self, files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
        return tuple(self._source.completed(file, self._progress) for file in files)

    def _clear(self, chosen: Selection) -> None:
        """Remove what an earlier attempt left and this one makes anew."""
        wanted = {self._checkpoint / file.path for file in chosen.files}
        for root in (self._staging.artifact, self._checkpoint):
            for path in [path for path in root.rglob("*") if not path.is_dir() and path not in wanted]:
                path.unlink()
        discard(self._staging.artifact / artifact.REFERENCE)

    def _bring_auxiliaries(self) -> None:
        """Bring what is taken of the auxiliary repositories, all of it small."""
        discard(self._staging.auxiliary)
        for number, (name, source) in enumerate(self._further):
            self._progress.start("listing", message=f"auxiliary {name}")
            listing = source.listing(self._progress)
            checkpoint_files.refuse_escapes(file.path for file in listing)
            folder = self._staging.auxiliary / str(number)
            folder.mkdir(parents=True)
            chosen = [source.completed(file, self._progress) for file in checkpoint_files.texts(listing)]
            self._progress.start("download", sum(file.size for file in chosen))
            for file in chosen:
                self._bring(source, file, folder / file.path)
                if file.path.endswith(".json"):
                    checkpoint_files.refuse_code(file.path, (folder / file.path).read_bytes(), [])
            self._auxiliary[name] = folder

    def _download(self, chosen: Selection, listing: list[str]) -> None:
        """Bring every file; what a checkpoint can be refused for comes before its largest files."""
        self._progress.start("download", sum(file.size for file in (*chosen.files, *chosen.pickles)))
        large = [file for file in chosen.files if checkpoint_files.is_trunk(file)]
        for file in chosen.files:
            if file not in large:
                self._bring(self._source, file, self._checkpoint / file.path)
        for path in (file.path for file in chosen.files if file.path.endswith(".json")):
            if not self._request.trust_remote_code:
                checkpoint_files.refuse_code(path, (self._checkpoint / path).read_bytes(), listing)
        if not chosen.pickles or self._hooks.convert:
            self._check()
        for file in large:
            self._bring(self._source, file, self._checkpoint / file.path)
        for file in chosen.pickles:
            self._bring(self._source, file, self._staging.pickles / file.path)
        if chosen.pickles:
            self._unpickle(chosen.pickles)
            self._check()

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
        named = f"{file.path}\0{file.tag}" if file.tag else file.path
        name = file.sha256 or file.git_sha1 or hashlib.sha256(named.encode()).hexdigest()
        self._staging.partial.mkdir(parents=True, exist_ok=True)
        partial = self._staging.partial / name
        source.fetch(file, partial, self._progress)
        self._received.note(file, partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)

    def _unpickle(self, files: Iterable[SourceFile]) -> None:
        """Write pickled weights as safetensors, folder by folder."""
        from encoder_plugins.prep.pickle_conversion import convert_folder

        self._progress.start("convert")
        folders: defaultdict[Path, dict[Path, Path]] = defaultdict(dict)
        for file in files:
            target = self._checkpoint / checkpoint_files.converted_name(file.path)
            folders[target.parent][self._staging.pickles / file.path] = target
        for pickles in folders.values():
            convert_folder(pickles)

    def _check(self) -> None:
        """Let the plugin refuse what it would serve differently from the original library."""
        if self._hooks.check is not None:
            self._hooks.check(self._checkpoint, self._auxiliary)

    def _transform(self) -> None:
        """Let the plugin write the engine's folder, where that is not the checkpoint as it is."""
        if self._hooks.convert is None:
            return
        self._progress.start("convert")
        discard(self._model)
        self._model.mkdir(parents=True)
        self._hooks.convert(self._checkpoint, self._auxiliary, self._model)

    def _record(self) -> None:
        """Record what the original library answers."""
        from encoder_plugins.artifact.reference import write

        self._progress.start("reference")
        trusted = {"trust_remote_code": True} if self._request.trust_remote_code else {}
        recording = resolve(self._request.plugin.recorder)(self._model, self._request.inputs, **trusted)
        write(recording, self._staging.artifact)

    def _publish(self) -> Prepared:
        """Write the manifest and make the artifact visible."""
        self._progress.start("seal")
        output, plugin = self._request.output, self._request.plugin
        manifest = artifact.build(
            self._staging.artifact,
            key=output.name,
            plugin=plugin.name,
            prep_version=plugin.prep_version,
            source=self._describe(),
        )
        (self._staging.artifact / artifact.MANIFEST).write_bytes(manifest.encode())
        self._progress.start("publish")
        # there is something to replace only where `_find` found this very artifact damaged
        if os.path.lexists(output):
            self._staging.set_aside()
        self._staging.publish()
        return Prepared.of(output, manifest)

    def _describe(self) -> dict[str, Any]:
        """Say where everything came from."""
        described = self._source.describe()
        # what came is the revision of a source that has none
        described.setdefault("revision", self._received.digest(self._taken))
        if self._further:
            described["auxiliary"] = [source.describe() for _, source in self._further]
        if self._request.trust_remote_code:
            described["trust_remote_code"] = True
        if self._request.inputs:
            described["inputs"] = fingerprint(self._request.inputs)
        return described


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a plugin does with a checkpoint, in the module `checkpoint` of its folder.

    Attributes:
        check: Refuses, by raising, what would be served differently from the original library: first without the largest
            files, so that it never asks for them. Gets the checkpoint's folder, and the auxiliary ones by repository.
        convert: Writes the folder that the engine loads; gets the same and that folder. None where the checkpoint is it.
        runs_code: Whether its original library may be told to run the checkpoint's own Python code.
    """

    check: Callable[[Path, Mapping[str, Path]], None] | None = None
    convert: Callable[[Path, Mapping[str, Path], Path], None] | None = None
    runs_code: bool = False


def hooks_of(plugin: Plugin) -> Hooks:
    """Find a plugin's hooks; a plugin without any takes checkpoints as they are."""
    name = f"{models.__name__}.{plugin.name}.checkpoint"
    if importlib.util.find_spec(name) is None:
        return Hooks()
    module = importlib.import_module(name)
    return Hooks(getattr(module, "check", None), getattr(module, "convert", None), getattr(module, "RUNS_CODE", False))
