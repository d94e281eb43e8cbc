"""Rules about files that hold for every plugin, and helpers for selecting files. Pure: no file is opened here.

Whatever a plugin selects, prep refuses paths that lead out of the folder, pickles without permission, and files that
would send a loader to Python code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.errors import PickleRefused, RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.prep.checkpoint import Checkpoint, Selection, SourceFile, WithAuxiliaryWeights
from encoder_plugins.prep.checkpoint_json import parse_json

MODULES = "modules.json"
INDEX = "model.safetensors.index.json"

_TEXT_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja", ".spm", ".vocab", ".tiktoken", ".codes"})
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
# files that a training run leaves beside the weights, pickled too, and that nobody loads to serve
_TRAINING_STATE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|trainer_state)[\w-]*\.\w+")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# a pointer has less
LARGEST_POINTER = 1024
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")


def refuse_escapes(paths: Iterable[str]) -> None:
    """Refuse a listing that could write outside the artifact.

    Raises:
        Unsupported: A path is absolute, leads upwards, or holds characters that no file name should.
    """
    for path in paths:
        if not is_inside(path):
            raise Unsupported(f"the source lists {path!r}, which is not a plain relative path")


def enforce(selection: Selection, listed: Iterable[SourceFile], *, allow_pickle: bool) -> None:
    """Hold a plugin's selection to the rules that no plugin can change.

    Raises:
        PickleRefused: It needs pickled weights, and they are not allowed.
        SourceFileNotFound: It has no weights.
        Unsupported: It has a file that the source does not list, or a pickle or code among the plain files.
    """
    known = {file.path for file in listed}
    taken = (*selection.files, *selection.pickles, *selection.code)
    refuse_escapes(file.path for file in taken)
    if unknown := sorted({file.path for file in taken} - known):
        raise Unsupported(f"the source does not list {unknown[0]}")
    for file in selection.files:
        if is_pickle(file) or file.path.endswith(".py"):
            raise Unsupported(f"{file.path} is a pickle or code, and was selected as a plain file")
    if selection.pickles and not allow_pickle:
        names = ", ".join(file.path for file in selection.pickles[:3])
        raise PickleRefused(
            f"weights are pickled only ({names}), which can run code: choose a checkpoint with safetensors, or allow pickle"
        )
    if not selection.pickles and not any(file.path.endswith(".safetensors") for file in selection.files):
        raise SourceFileNotFound("the checkpoint has no weights: the plugin found no *.safetensors that it would load")


def module_folders(modules_json: bytes | None) -> tuple[str, ...]:
    """Return the folders that modules.json names; the root is the empty one, and always the first.

    Raises:
        Unsupported: The file is not a list of modules.
    """
    folders = [""]
    for module in _modules(modules_json):
        folder = module.get("path", "")
        if not isinstance(folder, str) or (folder and not is_inside(folder)):
            raise Unsupported(f"{MODULES} names the folder {folder!r}, which is not a plain relative path")
        folders.append(folder)
    return tuple(dict.fromkeys(folders))


def select_folders(files: Sequence[SourceFile], folders: Iterable[str]) -> Selection:
    """Select weights, configuration, tokenizer and code of some folders.

    Other formats of the same weights (ONNX, OpenVINO, TensorFlow) are left out, and so are weights beside those that
    would be loaded.

    Args:
        files: Everything that the source has.
        folders: The folders' paths; the root is the empty one.
    """
    taken: list[SourceFile] = []
    pickles: list[SourceFile] = []
    code: list[SourceFile] = []
    for folder in folders:
        inside = in_folder(files, folder)
        weights = weights_in(inside)
        sharded = bool(weights) and PurePosixPath(weights[0].path).name != "model.safetensors"
        taken += [*weights, *texts_in(inside, sharded=sharded)]
        code += [file for file in inside if file.path.endswith(".py")]
        if not weights:
            pickles += [file for file in inside if is_pickle(file) and not is_training_state(file)]
    return Selection(files=_by_path(taken), pickles=_by_path(pickles), code=_by_path(code))


def in_folder(files: Iterable[SourceFile], folder: str) -> list[SourceFile]:
    """Return the files directly in a folder; the root is the empty one. Not those that macOS puts beside them."""
    inside = [file for file in files if str(PurePosixPath(file.path).parent) == (folder or ".")]
    return [file for file in inside if not PurePosixPath(file.path).name.startswith("._")]


def weights_in(inside: Sequence[SourceFile]) -> list[SourceFile]:
    """Choose a folder's safetensors as transformers does: one file before an index before anything else."""
    found = [file for file in inside if file.path.endswith(".safetensors")]
    by_name = {PurePosixPath(file.path).name: file for file in found}
    if "model.safetensors" in by_name:
        return [by_name["model.safetensors"]]
    if any(PurePosixPath(file.path).name == INDEX for file in inside):
        # shards of other names are taken with whatever is beside them
        return [file for name, file in by_name.items() if _SHARD.fullmatch(name)] or found
    return found


def texts_in(inside: Iterable[SourceFile], *, sharded: bool = False) -> list[SourceFile]:
    """Choose a folder's configuration and tokenizer; the index of weights only where these are sharded."""
    found = []
    for file in inside:
        name = PurePosixPath(file.path)
        index = name.name.endswith(".index.json")
        if (name.name == INDEX and sharded) if index else name.suffix in _TEXT_SUFFIXES:
            found.append(file)
    return found


def texts(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """Choose configuration and tokenizer of an auxiliary repository's root.

    Raises:
        SourceFileNotFound: There are none.
    """
    found = texts_in(in_folder(files, ""))
    if not found:
        raise SourceFileNotFound("the auxiliary repository has neither configuration nor tokenizer in its root")
    return _by_path(found)


def auxiliary(
    checkpoint: Checkpoint, name: str, listing: Sequence[SourceFile], *, allow_pickle: bool
) -> tuple[SourceFile, ...]:
    """Choose what is taken of the auxiliary repository ``name``: what the plugin selects, else the root's ``texts``.

    Raises:
        PickleRefused: It needs a pickle, and none is allowed.
        SourceFileNotFound: There is nothing to take.
        Unsupported: The plugin refuses it.
    """
    selected = checkpoint.auxiliary_files(name, listing) if isinstance(checkpoint, WithAuxiliaryWeights) else None
    if selected is None:
        return texts(listing)
    if selected.pickles and not allow_pickle:
        raise PickleRefused(
            f"the auxiliary repository {name} has pickled models ({selected.pickles[0].path}), which can run code; allow pickle"
            " to have their tensors and plain values read, and nothing else"
        )
    return _by_path([*selected.files, *selected.pickles])


def refuse_code(path: str, content: bytes, listing: Iterable[str]) -> None:
    """Refuse a configuration file that sends its loader to Python code in a repository.

    Python files alone are no reason: many repositories keep the script that trained the model.

    Args:
        path: The file's path in the checkpoint.
        content: Its bytes.
        listing: Every path that the source has.

    Raises:
        RemoteCodeRefused: It names such code.
        Unsupported: It is not JSON.
    """
    if path == MODULES:
        scripts = {PurePosixPath(name).stem for name in listing if name.endswith(".py")}
        for module in _modules(content):
            kind = str(module.get("type", ""))
            if kind.split(".")[0] in scripts:
                raise RemoteCodeRefused(f"{path} names {kind}, which is code of the repository; it is not trusted")
        return
    try:
        found = _names_code(parse_json(path, content))
    except RecursionError:
        raise Unsupported(f"{path} is nested too deeply") from None
    if found:
        raise RemoteCodeRefused(f"{path} has an auto_map, which names code of a repository; it is not trusted")


def require_shards(index: str, content: bytes, selected: Iterable[str]) -> None:
    """Require every file that an index of weights names, before the first of them is downloaded.

    Args:
        index: The index's path in the checkpoint.
        content: Its bytes.
        selected: The path of every file that is taken.

    Raises:
        SourceFileNotFound: A file that it names is not among them.
        Unsupported: It is not an index.
    """
    parsed = parse_json(index, content)
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise Unsupported(f"{index} has no weight_map from names of tensors to names of files")
    folder = PurePosixPath(index).parent
    missing = {str(folder / name) for name in weight_map.values()} - set(selected)
    if missing:
        raise SourceFileNotFound(f"{min(missing)} is missing: {index} has tensors in it")


def refuse_pointer(path: str, content: bytes) -> None:
    """Refuse a file that stands for another one: a clone of a repository without git LFS has such files.

    Raises:
        Unsupported: It is a pointer.
    """
    if content.startswith(_LFS_POINTER):
        raise Unsupported(
            f"{path} is a pointer of git LFS and not the file itself: run `git lfs pull` where it is from"
        )


def is_root_weights(file: SourceFile) -> bool:
    """Return whether a file holds weights of the root, by far the largest of a checkpoint."""
    return "/" not in file.path and file.path.endswith(".safetensors")


def is_pickle(file: SourceFile) -> bool:
    """Return whether a file is pickled, by its name."""
    return PurePosixPath(file.path).suffix in _PICKLE_SUFFIXES


def is_training_state(file: SourceFile) -> bool:
    """Return whether a file is what a training run keeps to go on from."""
    return _TRAINING_STATE.fullmatch(PurePosixPath(file.path).name) is not None


def left_out(files: Iterable[SourceFile], selection: Selection) -> list[str]:
    """Return the paths that a selection leaves out."""
    taken = {file.path for file in (*selection.files, *selection.pickles)}
    return sorted({file.path for file in files} - taken)


def converted_name(path: str) -> str:
    """Return the name of the safetensors file that replaces a pickle."""
    pure = PurePosixPath(path)
    stem = pure.stem.replace("pytorch_model", "model")
    return str(pure.with_name(f"{stem}.safetensors"))


def _names_code(value: Any) -> bool:
    """Return whether an ``auto_map`` is anywhere in a JSON value: GLiNER keeps its encoder's configuration inside its own."""
    if isinstance(value, dict):
        return bool(value.get("auto_map")) or any(map(_names_code, value.values()))
    return isinstance(value, list) and any(map(_names_code, value))


def _modules(content: bytes | None) -> list[dict[str, object]]:
    if content is None:
        return []
    parsed = parse_json(MODULES, content)
    if not isinstance(parsed, list) or not all(isinstance(module, dict) for module in parsed):
        raise Unsupported(f"{MODULES} is not a list of modules")
    return parsed


def _by_path(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))
