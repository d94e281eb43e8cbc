"""Pickled weights: converted where the user allows it, and never run."""

from __future__ import annotations

import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.pickle_conversion import convert, convert_folder
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]


def test_tensors_survive_and_shared_ones_are_written_twice(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared, "c": shared.T, "d": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "x.bin")
    assert convert(tmp_path / "x.bin", tmp_path / "deep" / "x.safetensors") == ["a", "b", "c", "d"]
    found = load_file(tmp_path / "deep" / "x.safetensors")
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
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("content", [{"a": Bomb()}, [1, 2], {"a": {"b": 1}}])
def test_what_is_no_table_of_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "x.bin")
    with pytest.raises(errors.PickleRefused):
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(Bomb(), protocol=2)])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(errors.PickleRefused):
        convert(tmp_path / "x.bin", tmp_path / "x.safetensors")


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
