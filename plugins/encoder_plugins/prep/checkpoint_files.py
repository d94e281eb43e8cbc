"""Decides which files of a checkpoint an artifact takes, and refuses what must not run. Pure: no file is opened here.

An artifact takes what the engine and the original library load: safetensors weights, tokenizer and configuration of
the root and of the folders that modules.json names. Other formats of the same weights (ONNX, OpenVINO, TensorFlow,
pickle) stay behind, and so do weights beside the ones that would be loaded, which an engine might pick up instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.errors import PickleRefused, RemoteCodeRefused, SourceFileNotFound, Unsupported

MODULES = "modules.json"

_BLOCK = 4096

_TEXT_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja", ".spm", ".vocab", ".tiktoken", ".codes"})
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt"})
# what a training run leaves beside the weights, pickled too, and nobody loads to serve
_LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|trainer_state)[\w-]*\.\w+")
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as its source describes it; a hash that the source does not tell is None.

    Attributes:
        path: Below the source's root.
        size: In bytes; -1 where the source does not tell.
        sha256: Of its content.
        git_sha1: Of its content, as git makes it.
        tag: What its source changes whenever the content changes, where it tells no hash.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is taken.

    Attributes:
        files: Go into the artifact's model folder as they are.
        pickles: Weights that are converted to safetensors; empty unless pickle is allowed and needed.
    """

    files: tuple[SourceFile, ...]
    pickles: tuple[SourceFile, ...]

    @property
    def size(self) -> int:
        """Bytes on the volume while prep works, in whole blocks; pickled weights are there twice."""
        return sum(-(-max(file.size, 0) // _BLOCK) * _BLOCK for file in (*self.files, *self.pickles, *self.pickles))


def refuse_escapes(paths: Iterable[str]) -> None:
    """Refuse a listing that could write outside the artifact.

    Raises:
        Unsupported: A path is absolute, climbs, or holds what no file name should.
    """
    for path in paths:
        if not is_inside(path):
            raise Unsupported(f"the source lists {path!r}, which is no plain relative path")


def module_folders(modules_json: bytes | None) -> tuple[str, ...]:
    """Name the folders that a checkpoint's modules.json sends its loader to; the root is the empty one.

    Raises:
        Unsupported: It is not the list of modules that it should be.
    """
    folders = [""]
    for module in _modules(modules_json):
        folder = module.get("path", "")
        if not isinstance(folder, str) or (folder and not is_inside(folder)):
            raise Unsupported(f"{MODULES} names the folder {folder!r}, which is no plain relative path")
        folders.append(folder)
    return tuple(dict.fromkeys(folders))


def select(
    files: Sequence[SourceFile], modules_json: bytes | None, *, allow_pickle: bool, code: bool = False
) -> Selection:
    """Choose the files of an artifact.

    Args:
        files: Everything that the source has.
        modules_json: Content of the checkpoint's modules.json, None where it has none.
        allow_pickle: Take pickled weights where there are no others.
        code: Take the Python files, too: of the root, and of the folders that the list of modules names.

    Raises:
        PickleRefused: A folder's weights are pickled only, and that is not allowed.
        SourceFileNotFound: No folder has weights.
        Unsupported: modules.json is unreadable.
    """
    taken: list[SourceFile] = []
    pickles: list[SourceFile] = []
    for folder in module_folders(modules_json):
        inside = [file for file in files if str(PurePosixPath(file.path).parent) == (folder or ".")]
        weights = _weights(inside)
        taken += weights
        taken += [file for file in inside if _is_text(file, weights) or (code and file.path.endswith(".py"))]
        if not weights:
            pickles += _pickles(inside)
    if pickles and not allow_pickle:
        names = ", ".join(file.path for file in pickles[:3])
        raise PickleRefused(
            f"weights are pickled only ({names}), which can run code: choose a checkpoint with safetensors, or allow pickle"
        )
    if not pickles and not any(file.path.endswith(".safetensors") for file in taken):
        raise SourceFileNotFound(
            "the checkpoint has no weights: no *.safetensors where its modules.json or its root has them"
        )
    return Selection(files=tuple(sorted(taken, key=_path)), pickles=tuple(sorted(pickles, key=_path)))


def texts(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """Choose configuration and tokenizer of a repository's root, and no weights.

    Raises:
        SourceFileNotFound: There are none.
    """
    found = [file for file in files if "/" not in file.path and _is_text(file, ())]
    if not found:
        raise SourceFileNotFound("the auxiliary repository has neither configuration nor tokenizer in its root")
    return tuple(sorted(found, key=_path))


def refuse_code(path: str, content: bytes, listing: Iterable[str]) -> None:
    """Refuse a configuration file that sends its loader to Python code in a repository.

    Python files alone are no reason: many repositories keep the script that trained the model.

    Args:
        path: The file's path in the checkpoint.
        content: Its bytes.
        listing: Every path that the source has.

    Raises:
        RemoteCodeRefused: It names such code.
        Unsupported: It is a JSON file by its name only.
    """
    if path == MODULES:
        scripts = {PurePosixPath(name).stem for name in listing if name.endswith(".py")}
        for module in _modules(content):
            kind = str(module.get("type", ""))
            if kind.split(".")[0] in scripts:
                raise RemoteCodeRefused(
                    f"{path} names {kind}, which is code of the repository, and that was not allowed"
                )
        return
    parsed = _parse(path, content)
    if isinstance(parsed, dict) and parsed.get("auto_map"):
        raise RemoteCodeRefused(f"{path} has an auto_map, which is code of a repository, and that was not allowed")


def is_trunk(file: SourceFile) -> bool:
    """Tell whether a file holds the root's weights, by far the largest of a checkpoint."""
    return "/" not in file.path and file.path.endswith(".safetensors")


def converted_name(path: str) -> str:
    """Name the safetensors file that takes a pickle's place."""
    pure = PurePosixPath(path)
    stem = pure.stem.replace("pytorch_model", "model")
    return str(pure.with_name(f"{stem}.safetensors"))


def _weights(inside: Sequence[SourceFile]) -> list[SourceFile]:
    """Choose a folder's safetensors as transformers does: one file before an index before anything else."""
    found = [file for file in inside if file.path.endswith(".safetensors")]
    by_name = {PurePosixPath(file.path).name: file for file in found}
    if "model.safetensors" in by_name:
        return [by_name["model.safetensors"]]
    if any(PurePosixPath(file.path).name == "model.safetensors.index.json" for file in inside):
        return [file for name, file in by_name.items() if _SHARD.fullmatch(name)]
    return found


def _is_text(file: SourceFile, weights: Sequence[SourceFile]) -> bool:
    """Tell whether a file is configuration or tokenizer, leaving out an index of weights that are not taken."""
    name = PurePosixPath(file.path).name
    if name.endswith(".index.json"):
        return name == "model.safetensors.index.json" and len(weights) > 1
    return PurePosixPath(name).suffix in _TEXT_SUFFIXES


def _pickles(inside: Sequence[SourceFile]) -> list[SourceFile]:
    """Choose a folder's pickled weights."""
    found = [file for file in inside if PurePosixPath(file.path).suffix in _PICKLE_SUFFIXES]
    return [file for file in found if not _LEFTOVERS.fullmatch(PurePosixPath(file.path).name)]


def _modules(content: bytes | None) -> list[dict[str, object]]:
    """Parse modules.json."""
    if content is None:
        return []
    parsed = _parse(MODULES, content)
    if not isinstance(parsed, list) or not all(isinstance(module, dict) for module in parsed):
        raise Unsupported(f"{MODULES} is not a list of modules")
    return parsed


def _parse(path: str, content: bytes) -> object:
    """Parse a JSON file of a checkpoint."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{path} is not JSON: {error}") from error


def _path(file: SourceFile) -> str:
    """Sort by path."""
    return file.path
