"""Fields of a published config.json that end the engine's start, though the original library does not read them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import catalog
from encoder_plugins.plugin import resolve

# torch and transformers warn about themselves
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

UNREAD = {"seq_length": 8, "model_max_length": 8, "is_encoder_decoder": True}


def add(path: Path) -> None:
    """Add the fields where the checkpoint has its encoder's configuration."""
    config: dict[str, Any] = json.loads(path.read_text())
    for encoder in (config, config.get("encoder_config"), config.get("text_config")):
        if encoder is not None:
            encoder |= UNREAD
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("plugin", "file"),
    [
        ("sentence_transformer", "config.json"),
        ("embeddinggemma", "config.json"),
        ("moderncolbert", "config.json"),
        ("mmbert_gliner", "gliner_config.json"),
        ("deberta_gliner2", "encoder_config/config.json"),
        ("colqwen3", "config.json"),
        ("collfm2", "config.json"),
    ],
)
def test_what_the_library_does_not_read_is_left_out(plugin: str, file: str, tmp_path: Path) -> None:
    sample = importlib.import_module(f"encoder_plugins.models.{plugin}.tests.sample")
    published = sample.build(tmp_path / "published")
    add(published / file)
    target = tmp_path / "model"
    target.mkdir()
    checkpoint: Any = resolve(catalog.get(plugin).checkpoint)
    checkpoint.check(published, {})
    checkpoint.convert(published, {}, target)
    written = json.loads((target / "config.json").read_text())
    # null is what transformers itself writes
    for encoder in (written, written.get("text_config", {})):
        assert not [name for name in UNREAD if encoder.get(name)]
