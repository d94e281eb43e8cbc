"""Stock checkpoints of the encoders that we have classes for are served by vLLM as without our package, and as transformers computes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_plugins.models.collfm2.tests import tiny as tiled
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.serving.tests import stock_models

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # models run eagerly in any case; what vLLM still compiles, a function that counts the tokens likelier than the one chosen, would
    # cost as much as all five engines where its cache is empty
    "TORCHDYNAMO_DISABLE": "1",
}


def answers(folder: Path, plugins: str) -> dict[str, Any]:
    command = [sys.executable, str(stock_models.__file__), str(folder)]
    environment = os.environ | ENVIRONMENT | {"VLLM_PLUGINS": plugins}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def by_transformers(folder: Path) -> list[Any]:
    """Return the normalised last rows of an encoder: what vLLM pools where a checkpoint says nothing."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.inference_mode():
        for ids in stock_models.PROMPTS:
            rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            found.append(torch.nn.functional.normalize(rows, dim=-1).numpy())
    return found


def test_stock_checkpoints_are_served_as_without_our_plugins(tmp_path: Path) -> None:
    stock_models.build(tmp_path)
    stock_models.build_visual(tmp_path, tiny.build(tmp_path / "published"))
    stock_models.build_tiled(tmp_path, tiled.build(tmp_path / "tiled")[0])
    plain, beside = answers(tmp_path, ""), answers(tmp_path, "encoder")
    assert plain["ours"] == []
    assert {
        "ModernColbertModel",
        "Lfm2ColbertModel",
        "SentenceGemma3Model",
        "VisualColQwen3Model",
        "VisualColLfm2Model",
    } <= set(beside["ours"])
    # the same code on the same processor: the very same numbers
    assert beside["answers"] == plain["answers"]
    for name in ("qwen3_vl", "lfm2_vl"):
        first, second, _ = plain["answers"][name]
        assert first != second, name
    for name in ("modernbert", "gemma3"):
        for vector, rows in zip(beside["answers"][name], by_transformers(tmp_path / name), strict=True):
            # the first row or the last one, whichever vLLM's class takes
            assert min(np.abs(np.asarray(vector) - rows[place]).max() for place in (0, -1)) < 1e-4, name
