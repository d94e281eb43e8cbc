"""Encoders whose layers are split over two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.tests.free_port import free_port

RANK = Path(__file__).with_name("rank.py")


@pytest.mark.engine
def test_two_ranks_give_the_rows_of_transformers(record_property: Any) -> None:
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    # what vLLM calls the memory that its ranks on a CPU share
    environment["VLLM_DIST_IDENT"] = f"encoder{port}"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), "2", str(rank), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, output in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, output
        # torch says goodbye behind it
        errors = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        record_property("worst", errors)
        assert set(errors) == {
            "bert",
            "deberta_v2",
            "deberta_v2 with own projections",
            "modernbert",
            "gemma3",
            "lfm2",
            "mt5",
        }
        assert max(errors.values()) <= 2e-5, errors
