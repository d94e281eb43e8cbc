"""What the published checkpoints on mT5 say of words, and what to do about it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from encoder_plugins.errors import Unsupported
from encoder_plugins.models.mt5_gliner.checkpoint import CHECKPOINT


@pytest.mark.filterwarnings("ignore")
def test_another_splitter_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # torch and transformers warn of themselves when they are imported
        warnings.simplefilter("ignore")
        from encoder_checkpoints import gliner

        folder = gliner.build(tmp_path / "source", "mt5_gliner")
    path = folder / "gliner_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "words_splitter_type": "stanza"}), encoding="utf-8")
    with pytest.raises(
        Unsupported, match=r'words_splitter_type is "stanza".*prepare\.parameters\.wordsSplitter: whitespace'
    ):
        CHECKPOINT.check(folder, {})
    CHECKPOINT.configured({"wordsSplitter": "whitespace"}).check(folder, {})
    path.write_text(json.dumps({**config, "words_splitter_type": "whitespace"}), encoding="utf-8")
    CHECKPOINT.check(folder, {})
