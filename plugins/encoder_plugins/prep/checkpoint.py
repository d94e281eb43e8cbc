"""The interface between prep and a plugin's checkpoint format, and what prep and serving exchange about it.

No torch and no vLLM: declarations are checked with it, and the serving start imports it before the engine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Accelerator, Plugin, resolve

_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as its source describes it; None stands for a hash that the source does not report.

    Attributes:
        path: The path below the source's root.
        size: Bytes; -1 where the source does not report them.
        sha256: Of its content.
        git_sha1: Of its content, as git computes it.
        tag: A value that its source changes whenever the content changes, where it reports no hash.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None
    tag: str | None = None


class Listing(Protocol):
    """Every file that a source has."""

    def __iter__(self) -> Iterator[SourceFile]:
        """Iterate over the files, sorted by path."""

    def read(self, path: str) -> bytes | None:
        """Fetch a small file and return its content; None if the source has none of this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The files of a checkpoint that prep downloads.

    Attributes:
        files: Go into the published folder: weights as safetensors, configuration, tokenizer.
        pickles: Pickled weights, which prep converts if the user allows it; empty where there are safetensors.
        code: Python files, taken only if the user trusts the checkpoint's code.
        code_is_optional: Whether configuration may name such code without that trust: no loader of prep, recorder or engine goes by it.
    """

    files: tuple[SourceFile, ...]
    pickles: tuple[SourceFile, ...] = ()
    code: tuple[SourceFile, ...] = ()
    code_is_optional: bool = False

    @property
    def size(self) -> int:
        """Bytes on the volume while prep works, in whole blocks; pickled weights are there twice."""
        taken = (*self.files, *self.code, *self.pickles, *self.pickles)
        return sum(-(-max(file.size, 0) // _BLOCK) * _BLOCK for file in taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a checkpoint's own files decide about the engine; strings and numbers only.

    Attributes:
        max_model_len: Tokens of the longest prompt that is served; None leaves vLLM's choice.
        batch_tokens: Tokens that a scheduler step must be able to hold: the longest prompt where prompts are not split.
            0 where the checkpoint sets no lower bound.
        batch_sequences: Prompts of a scheduler step; None leaves the choice to tuning.
        arguments: Further vLLM arguments.
    """

    max_model_len: int | None = None
    batch_tokens: int = 0
    batch_sequences: int | None = None
    arguments: tuple[str, ...] = ()


class Checkpoint(Protocol):
    """One plugin's checkpoint format.

    Attributes:
        runs_code: Whether the original library may run Python code of the checkpoint, if the user trusts it.
    """

    runs_code: bool

    def files(self, listing: Listing) -> Selection:
        """Select the files that the original library and the engine load.

        Raises:
            SourceFileNotFound: A file that the format needs is missing.
            Unsupported: The listing is of another format; the message names it.
        """

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse a checkpoint that would be served differently from the original library.

        Runs before the root's weights are downloaded, and reads configuration with the functions that the engine uses.

        Args:
            folder: The checkpoint as published, but for the root's weights.
            auxiliary: Folders of the auxiliary repositories, by repository.

        Raises:
            Unsupported: The message names the file and the field.
            SourceFileNotFound: A file is missing.
        """

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the folder that the engine loads.

        Args:
            folder: The checkpoint, with weights as safetensors.
            auxiliary: Folders of the auxiliary repositories, by repository.
            target: An empty folder.

        Raises:
            Unsupported: Weights, tokenizer and configuration do not belong together.
            SourceFileNotFound: A file is missing.
        """

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what the model folder of an artifact decides about the engine; called when serving starts.

        Raises:
            NotServable: This accelerator cannot run the checkpoint.
        """


class Configurable(Checkpoint, Protocol):
    """The checkpoint format of a plugin that declares parameters."""

    def configured(self, parameters: Mapping[str, Value]) -> Checkpoint:
        """Return the format with the user's parameters, which ``encoder_plugins.parameters.check`` has checked."""


@runtime_checkable
class WithAuxiliaryWeights(Protocol):
    """The checkpoint format of a plugin that takes more of auxiliary repositories than configuration and tokenizer."""

    def auxiliary_files(self, name: str, listing: Sequence[SourceFile]) -> Selection | None:
        """Select the files of the auxiliary repository ``name``; None for configuration and tokenizer of its root.

        Raises:
            SourceFileNotFound: A file that the format needs is missing.
            Unsupported: The repository is of no use.
        """


class WithLabelSets(Checkpoint, Protocol):
    """The checkpoint format of a plugin that is prepared with label sets."""

    def refused_label(self, model: Path, labels: Iterable[str]) -> tuple[int, str] | None:
        """Return the number of the first label that the server could not take, and why; None where it can take all of them.

        Args:
            model: The folder that ``convert`` wrote.
            labels: The labels of a set, in order.
        """


def configured(plugin: Plugin, parameters: Mapping[str, Value]) -> Checkpoint:
    """Return a plugin's checkpoint format with the user's parameters; as it is declared where there are none."""
    if not parameters:
        declared: Checkpoint = resolve(plugin.checkpoint)
        return declared
    configurable: Configurable = resolve(plugin.checkpoint)
    return configurable.configured(parameters)


def link_files(folder: Path, target: Path) -> None:
    """Give ``target`` the files of ``folder``: hard links, or copies where the volume has no hard links.

    What a checkpoint's ``convert`` does where the engine loads the published files.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            link(path, place)


def link(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, or a copy of it where the volume has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
