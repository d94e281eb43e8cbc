"""An answer does not depend on other requests: in a batch, shuffled, beside requests of every kind, and while others come and go.

Every plugin of the catalogue, on the real engine, on both of vLLM's model runners: V1, which CPUs use, and V2, which GPUs
use, here on Triton's interpreter. One process for each runner; ``isolation.py`` is what runs in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from encoder_checkpoints import samples
from encoder_plugins import catalog

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parent
# float32 sums in another order, relative to numbers above 1; everything but numbers must be the same
CLOSE = 1e-5
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_PLUGINS": "encoder",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
RUNNERS: dict[str, dict[str, str]] = {
    "v1": {},
    "v2": {"TRITON_INTERPRET": "1", "PYTHONPATH": str(FOLDER / "interpreter")},
}


@dataclass
class Runs:
    """The results of each runner's process, run once."""

    artifacts: Path
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, runner: str, plugin: str) -> dict[str, Any]:
        """Return the result of one plugin."""
        if runner not in self.results:
            command = [sys.executable, str(FOLDER / "isolation.py"), str(self.artifacts), runner]
            environment = os.environ | ENVIRONMENT | RUNNERS[runner]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"plugin"')]
            self.results[runner] = {line["plugin"]: line | {"log": done.stderr[-4000:]} for line in lines}
            assert lines, done.stderr[-4000:]
        found: dict[str, Any] = self.results[runner][plugin]
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every plugin's sample checkpoint, prepared."""
    folder = tmp_path_factory.mktemp("samples")
    for sample in samples.samples():
        samples.prepare(sample, folder)
    return Runs(folder / "artifacts")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("plugin", list(catalog.plugins()))
def test_an_answer_depends_on_no_neighbour(plugin: str, runner: str, runs: Runs) -> None:
    found = runs.of(runner, plugin)
    assert "error" not in found, found["error"] + found["log"]
    assert found["runner"] == runner
    # answers that are all alike would hide that they were exchanged, and requests of one kind that kinds disturb each other
    assert found["differ"] >= 3
    assert found["kinds"] >= 2
    assert len(found["from alone"]) == 4
    assert max(found["from alone"].values()) <= CLOSE, found["from alone"]
    assert found["further from alone"] <= CLOSE
    assert found["from the library"] == {}
