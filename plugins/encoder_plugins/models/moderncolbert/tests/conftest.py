"""One small checkpoint for the tests of requests, as published and converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_plugins.models.moderncolbert.checkpoint import CHECKPOINT
from encoder_plugins.models.moderncolbert.tests import tiny


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("pylate", tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def model(published: Path) -> Path:
    folder = published.parent / "model"
    folder.mkdir()
    CHECKPOINT.convert(published, {}, folder)
    return folder
