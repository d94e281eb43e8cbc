"""Pickled weights: converted where the user allows it, and never run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.plugin import Plugin
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.pickle_conversion import convert, convert_folder
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]


def test_tensors_survive_and_shared_ones_are_written_twice(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared, "c": shared.T, "d": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "x.bin")
    assert convert(tmp_path / "x.bin", tmp_path / "deep" / "deeper" / "x.safetensors") == ["a", "b", "c", "d"]
    found = load_file(tmp_path / "deep" / "deeper" / "x.safetensors")
    assert torch.equal(found["b"], shared)
    assert torch.equal(found["c"], shared.T)
    assert found["d"].dtype == torch.bfloat16


def test_shards_get_an_index(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        torch.save({name: torch.ones(1)}, tmp_path / f"{number}.bin")
    convert_folder({tmp_path / f"{number}.bin": tmp_path / f"model-{number}.safetensors" for number in (0, 1)})
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": "model-0.safetensors", "b": "model-1.safetensors"}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


def bombs(target: Path) -> Iterator[object]:
    """Return what a loader without protection would accept as a table of tensors, and what it would not."""
    yield {"a": torch.ones(2), "b": Bomb(target)}
    yield Bomb(target)


def test_the_bomb_of_these_tests_goes_off_where_nothing_protects(tmp_path: Path) -> None:
    torch.save({"a": Bomb(tmp_path / "ran")}, tmp_path / "x.bin")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, number: int, save: Callable[[object, Path], object]) -> None:
    save(list(bombs(tmp_path / "ran"))[number], tmp_path / "x.bin")
    with pytest.raises(errors.PickleRefused):
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": {"b": 1}}])
def test_what_is_not_a_table_of_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "x.bin")
    with pytest.raises(errors.PickleRefused, match="not a table"):
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")


def _saved(folder: Path) -> bytes:
    torch.save({"a": torch.ones(1000)}, folder / "whole.bin")
    return (folder / "whole.bin").read_bytes()


# what torch raises for each of them is another type of error
@pytest.mark.parametrize(
    "content",
    [
        lambda _: b"the same weights",
        lambda _: b"",
        lambda _: b"no pickle" * 1000,
        lambda folder: _saved(folder)[:2000],
        lambda _: b"PK\3\4",
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, content: Callable[[Path], bytes]) -> None:
    (tmp_path / "x.bin").write_bytes(content(tmp_path))
    with pytest.raises(errors.PickleRefused, match=r"x\.bin holds more than tensors, or is damaged") as caught:
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_a_file_that_may_be_read_the_next_time_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(type(error)) as caught:
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")
    assert caught.value is error


def test_one_file_gets_no_index_and_may_stand_beside_others(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "x.bin")
    convert_folder({tmp_path / "x.bin": tmp_path / "model.safetensors"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "x.bin"]


def test_an_error_of_safetensors_that_is_no_full_disk_stays_one(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "x.bin")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SafetensorError):
        convert(tmp_path / "x.bin", tmp_path / "folder")


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(10_000)}, tmp_path / "x.bin")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            convert(tmp_path / "x.bin", tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def pickled(checkpoint: Path) -> Path:
    """The tiny checkpoint with its weights pickled only."""
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    return checkpoint


def test_a_pickled_checkpoint_is_refused_unless_allowed(
    requested: Requested, progress: Progress, pickled: Path
) -> None:
    with pytest.raises(errors.PickleRefused, match="pytorch_model"):
        prepare(requested(str(pickled)), progress)
    request = requested(str(pickled), allow_pickle=True)
    prepare(request, progress)
    paths = {entry.path for entry in manifest.verify(request.output).files}
    assert "model/model.safetensors" in paths
    assert not any(path.endswith(".bin") for path in paths)
    assert (request.output / "model/model.safetensors").stat().st_mode & 0o444 == 0o444


def test_the_original_library_gets_the_pickle_as_it_was_published(
    requested: Requested, progress: Progress, pickled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    record = reference_environment.record

    def watching(plugin: Plugin, folder: Path, *arguments: Any, **options: Any) -> Recording:
        seen.extend(sorted(path.name for path in folder.iterdir()))
        return record(plugin, folder, *arguments, **options)

    monkeypatch.setattr(reference_environment, "record", watching)
    prepare(requested(str(pickled), allow_pickle=True), progress)
    assert "pytorch_model.bin" in seen
    assert "model.safetensors" not in seen


def test_a_bomb_in_a_checkpoint_is_not_run_by_a_prep_that_may_take_pickles(
    requested: Requested, progress: Progress, pickled: Path, tmp_path: Path
) -> None:
    torch.save({"a": Bomb(tmp_path / "ran")}, pickled / "pytorch_model.bin")
    with pytest.raises(errors.PickleRefused, match="pytorch_model"):
        prepare(requested(str(pickled), allow_pickle=True), progress)
    assert not (tmp_path / "ran").exists()
