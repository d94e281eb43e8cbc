"""Numbers of several processes are one page, whichever of them answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.serving import command, entrypoint
from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.tuning import Tuning

WORKS = """
import sys
from encoder_plugins.serving.http.metrics import Counts
counts = Counts("deberta_gliner", 8)
for _ in range(int(sys.argv[1])):
    counts.request()
    counts.tokens(10)
counts.rejected(503)
counts.in_flight(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""
PAGE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_counters_and_requests_in_flight_of_all_processes_add_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKS, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2, 4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        page = subprocess.run(
            [sys.executable, "-c", PAGE], env=environment, capture_output=True, text=True, check=True
        ).stdout
    finally:
        for process in processes:
            process.communicate()
    lines = {line for line in page.splitlines() if not line.startswith("#")}
    label = '{plugin="deberta_gliner"}'
    assert lines >= {
        f"encoder_serving_requests_total{label} 7.0",
        f"encoder_serving_tokens_total{label} 70.0",
        f"encoder_serving_in_flight{label} 7.0",
        f"encoder_serving_in_flight_limit{label} 8.0",
        'encoder_serving_rejected_total{plugin="deberta_gliner",reason="overloaded"} 3.0',
        'encoder_serving_rejected_total{plugin="deberta_gliner",reason="invalid"} 0.0',
    }


def test_several_engines_count_in_one_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    class Supervisor:
        def __init__(self, commands: Any, environment: dict[str, str], listening: Any) -> None:
            seen.append(environment["PROMETHEUS_MULTIPROC_DIR"])

        def run(self) -> int:
            assert Path(seen[0]).is_dir()
            return 0

    tuning = Tuning(engines=2, api_servers=2)
    plan = entrypoint.Plan(commands=((), ()), environment={}, tuning=tuning, counters=worker_counters.new(4, tmp_path))
    monkeypatch.setattr(entrypoint, "Supervisor", Supervisor)
    monkeypatch.setattr(entrypoint, "plan", lambda *_: plan)
    monkeypatch.setattr(command, "check_servable", lambda *_: None)
    monkeypatch.setattr(entrypoint, "plugin_of", lambda *_: None)
    monkeypatch.setattr("encoder_plugins.artifact.manifest.verify", lambda *_: None)
    service = command.Service(artifact=tmp_path, name="m", port=1, accelerator="cpu", limits={})
    assert entrypoint.run(service, None) == 0
    # nothing of it stays: the next start begins at zero
    assert not Path(seen[0]).exists()
