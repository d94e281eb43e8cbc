"""Token marks through real engines: both of vLLM's model runners bring them to the model, request by request.

V2, which GPUs use, runs here on Triton's interpreter. One process for each runner; ``marked_engine.py`` is what runs in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent
INTERPRETER = FOLDER.parents[1] / "serving" / "tests" / "interpreter"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
RUNNERS: dict[str, dict[str, str]] = {
    "v1": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "v2": {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "PYTHONPATH": str(INTERPRETER)},
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_request_gets_the_rows_of_its_marks(runner: str, tmp_path: Path, record_property: Any) -> None:
    command = [sys.executable, str(FOLDER / "marked_engine.py"), str(tmp_path)]
    environment = os.environ | ENVIRONMENT | RUNNERS[runner]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"model"')]
    assert [line.pop("model") for line in lines] == ["deberta_v2", "modernbert", "both attentions"], done.stderr[-4000:]
    for line in lines:
        record_property("worst", line)
        assert line.pop("runner") == runner
        assert max(line.values()) <= 2e-5, line
