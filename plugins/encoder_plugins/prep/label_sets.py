"""The label sets of an artifact: fetched, checked, and written as servers read them.

A set that is not one is refused before the weights are downloaded. A label that the model's tokenizer makes too many tokens of is refused
before the reference outputs are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.staging import Staging, discard, require_space
from encoder_plugins.errors import PrepareError, SourceFileNotFound, Unsupported
from encoder_plugins.parity.protocol import Case, Parity, WithLabelSetCases
from encoder_plugins.prep import checksums
from encoder_plugins.prep.checkpoint import Checkpoint, SourceFile, WithLabelSets
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import LabelSetSource, Request
from encoder_plugins.prep.sources import base


class LabelSets:
    """The sets of one preparation."""

    def __init__(self, request: Request, staging: Staging) -> None:
        """Take the sets of a request.

        Raises:
            Unsupported: The plugin takes none, or there are too many, or one has a name that no set can have.
        """
        self._request = request
        self._staging = staging
        self._counts: dict[str, int] = {}
        if request.label_sets and not request.plugin.label_sets:
            raise Unsupported(f"{request.plugin.name} takes no label sets: omit --label-set")
        if len(request.label_sets) > label_sets.MOST_SETS:
            raise Unsupported(f"{len(request.label_sets)} label sets; the limit is {label_sets.MOST_SETS}")
        for one in request.label_sets:
            label_sets.check_name(one.name)

    def bring(self, progress: Progress) -> None:
        """Fetch and check each set, and write it to the staging folder as servers read it.

        Raises:
            PrepareError: One is not there, or another one than the checksum says, or not a label set.
        """
        discard(self._staging.label_sets)
        for wanted in self._request.label_sets:
            progress.start("listing", message=f"label set {wanted.name}")
            file = self._fetched(wanted, progress) if "://" in wanted.source else Path(wanted.source)
            found = SourceFile(path=f"label set {wanted.name}", size=-1, sha256=wanted.sha256)
            label_sets.check_file(file, wanted.name)
            try:
                checksums.check(found, file)
            except OSError as error:
                raise SourceFileNotFound(
                    f"label set {wanted.name}: cannot read {wanted.source}: {error.strerror}"
                ) from error
            self._staging.label_sets.mkdir(exist_ok=True)
            target = self._staging.label_sets / f"{wanted.name}{label_sets.SUFFIX}"
            self._counts[wanted.name] = label_sets.write(label_sets.parse(file, wanted.name), target)

    def seal(self, checkpoint: Checkpoint, model: Path) -> None:
        """Put the sets into the artifact, when its model folder is there.

        Raises:
            Unsupported: The model does not take a label.
        """
        for name, file in self.files.items():
            labels = (label.text for label in label_sets.read(file))
            if (refused := cast(WithLabelSets, checkpoint).refused_label(model, labels)) is not None:
                raise Unsupported(f"label set {name}: label {refused[0] + 1}: {refused[1]}")
        if self._counts:
            self._staging.label_sets.rename(self._staging.artifact / label_sets.FOLDER)

    @property
    def files(self) -> Mapping[str, Path]:
        """The sets as servers read them, by name."""
        sealed = self._staging.artifact / label_sets.FOLDER
        return label_sets.files(sealed if sealed.is_dir() else self._staging.label_sets) if self._counts else {}

    def describe(self) -> list[dict[str, str | int]]:
        """Return the sets for the manifest: with the checksum of what came, and the number of labels."""
        return [
            {"name": one.name, "sha256": one.sha256, "labels": self._counts[one.name]}
            for one in self._request.label_sets
        ]

    def _fetched(self, wanted: LabelSetSource, progress: Progress) -> Path:
        """Download a set, and return where it is; as much of it as an earlier attempt left is not downloaded again."""
        try:
            source = base.of_file(
                self._request, wanted.source, wanted.sha256, self._staging, most_bytes=label_sets.MOST_BYTES
            )
        except PrepareError as error:
            raise type(error)(f"label set {wanted.name}: {error}") from error
        try:
            file = SourceFile(path=f"label set {wanted.name}", size=-1, sha256=wanted.sha256)
            # what is too long, or another content as its source states, is refused before it is downloaded
            file = source.completed(file, progress)
            if file.size > label_sets.MOST_BYTES:
                raise Unsupported(f"{file.path}: {file.size} bytes; the limit is {label_sets.MOST_BYTES}")
            require_space(self._staging, max(file.size, 0))
            progress.start("download", max(file.size, 0), message=file.path)
            self._staging.partial.mkdir(exist_ok=True)
            target = self._staging.partial / wanted.sha256
            try:
                source.fetch(file, target, progress)
            except Unsupported:
                # no further attempt takes it
                target.unlink(missing_ok=True)
                raise
            return target
        finally:
            source.close()


def cases(parity: Parity, files: Mapping[str, Path]) -> list[Case]:
    """Return the cases of the parity check for the sets of an artifact, by name; none where there is no set."""
    return list(cast(WithLabelSetCases, parity).label_set_cases(files)) if files else []
