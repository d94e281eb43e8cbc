"""An engine whose connection to its servers has broken ends, so that its server does."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from encoder_plugins.serving import engine_threads

ENGINE = """
import os, sys, threading, time
os.environ["ENCODER_PLUGINS_DISABLED"] = "1"
import encoder_plugins
for _ in range(2):
    encoder_plugins.register()
def process_output_sockets():
    raise RuntimeError("this cannot be sent")
def another():
    raise RuntimeError("of no matter")
thread = threading.Thread(target=globals()[sys.argv[1]], daemon=True)
thread.start()
thread.join()
print("still here")
time.sleep(float(sys.argv[2]))
"""


def run(function: str, *, served: bool) -> subprocess.CompletedProcess[str]:
    environment = {"ENCODER_SERVING": "{}"} if served else {}
    # the end comes from another thread than the one that waits
    seconds = "60" if served and function in engine_threads.FUNCTIONS else "0"
    command = [sys.executable, "-c", ENGINE, function, seconds]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_an_engine_ends_with_the_thread_that_sends_its_answers() -> None:
    done = run("process_output_sockets", served=True)
    assert done.returncode == engine_threads.STATUS
    assert "this cannot be sent" in done.stderr


def test_neither_other_threads_nor_processes_that_serve_nothing_of_ours_are_ended() -> None:
    for function, served in (("another", True), ("process_output_sockets", False)):
        done = run(function, served=served)
        assert (done.returncode, done.stdout) == (0, "still here\n"), function
        assert done.stderr.count("Traceback") == 1


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_the_threads_are_those_of_vllm() -> None:
    from vllm.v1.engine.core import EngineCoreProc

    for function in engine_threads.FUNCTIONS:
        # the name that Python gives it
        assert engine_threads.is_watched(threading.Thread(target=getattr(EngineCoreProc, function)))
