from pathlib import Path

import pytest

from encoder_node.settings import Paths, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(paths=Paths(tmp_path / "cache"))
