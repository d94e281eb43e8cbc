"""Engines that share a GPU start on it one after the other: real locks, with vLLM's own part of the worker left out."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.serving.command import START_TURNS

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from vllm.v1.worker.gpu_worker import Worker

    from encoder_plugins.serving.turns import TurnTakingWorker

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What vLLM's worker does, in order."""
    found: list[str] = []
    monkeypatch.setattr(Worker, "init_device", lambda self: found.append(f"init {self.number}"))

    def ready(self: Any) -> int:
        found.append(f"ready {self.number}")
        return 7

    monkeypatch.setattr(Worker, "compile_or_warm_up_model", ready)
    return found


def worker(number: int, rank: int = 0) -> TurnTakingWorker:
    made: TurnTakingWorker = object.__new__(TurnTakingWorker)
    made.number, made.rank = number, rank
    return made


def test_an_engine_waits_until_the_one_before_is_ready(
    events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(START_TURNS, str(tmp_path / "turns"))
    first, second = worker(1), worker(2)
    first.init_device()
    waiting = threading.Thread(target=second.init_device)
    waiting.start()
    waiting.join(0.2)
    assert events == ["init 1"]
    # another worker of the first engine waits for nobody
    worker(1, rank=1).init_device()
    assert first.compile_or_warm_up_model() == 7
    waiting.join(10)
    assert events == ["init 1", "init 1", "ready 1", "init 2"]
    assert second.compile_or_warm_up_model() == 7


def test_an_engine_that_ends_while_it_starts_gives_its_turn_back(
    events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(START_TURNS, str(tmp_path / "turns"))
    script = (
        "import fcntl, os, sys\nturn = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
        "fcntl.flock(turn, fcntl.LOCK_EX)\nprint('has it', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "turns")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        waiting = threading.Thread(target=worker(1).init_device)
        waiting.start()
        waiting.join(0.2)
        assert events == []
        other.kill()
    waiting.join(10)
    assert events == ["init 1"]


def test_an_engine_alone_waits_for_nobody(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_TURNS, raising=False)
    alone = worker(1)
    alone.init_device()
    assert alone.compile_or_warm_up_model() == 7
    assert events == ["init 1", "ready 1"]
