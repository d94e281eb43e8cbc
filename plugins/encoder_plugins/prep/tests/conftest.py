"""Checkpoints that a test may change, and their conversion."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from encoder_plugins import catalog
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.tests.changed_checkpoint import WEIGHTS

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")

    from encoder_checkpoints import gliner as builder
    from encoder_checkpoints import recording


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several threads cost more than they give where there is little to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_recorder() -> Iterator[None]:
    """Record in a process that stays; that prep starts one for each recording is tested in ``test_recorded_reference``."""
    with recording.by_workers():
        yield


@pytest.fixture
def copied(published: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy that a test may change."""

    def get(plugin: str) -> Path:
        folder: Path = shutil.copytree(published(plugin), tmp_path / "changed")
        return folder

    return get


@pytest.fixture
def converted(tmp_path: Path) -> Callable[..., Path]:
    """Check and convert a checkpoint, without recording anything."""

    def convert(folder: Path, plugin: str = "deberta_gliner", auxiliary: dict[str, Path] | None = None) -> Path:
        checkpoint, target = resolve(catalog.get(plugin).checkpoint), tmp_path / "converted"
        target.mkdir()
        checkpoint.check(folder, auxiliary or {})
        checkpoint.convert(folder, auxiliary or {}, target)
        return target

    return convert


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint without encoder configuration and tokenizer, and the folder that has them."""
    base = tmp_path / "models" / "example" / "deberta-v3"
    source = builder.build(tmp_path / "models" / "demo" / "old", "deberta_gliner", auxiliary=base)
    assert {path.name for path in source.iterdir()} == {"gliner_config.json", WEIGHTS}
    return source, base
