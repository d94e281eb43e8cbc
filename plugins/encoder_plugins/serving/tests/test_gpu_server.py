"""A server on a GPU as its pod runs it: weights read in each of vLLM's ways, and engines that share the GPU and end together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_plugins.serving import mps
from encoder_plugins.tests.free_port import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

PLUGINS = ["sentence_transformer", "deberta_gliner"]
WAYS = ["safetensors", "fastsafetensors", "runai_streamer"]
TEXT = "Ada Lovelace met Charles Babbage in London , and wrote notes on his engine for Scientific Memoirs"
DATA: dict[str, Any] = {
    "sentence_transformer": {"texts": [TEXT, "engine"]},
    "deberta_gliner": {"texts": [TEXT, "engine"], "labels": ["person", "city", "machine"], "threshold": 0.3},
}


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def answer(self, data: dict[str, Any]) -> Any:
        with httpx.Client(timeout=120) as client:
            found = client.post(f"{self.url}/pooling", json={"data": data})
        assert found.status_code == 200, found.text
        return found.json()["data"]

    def family(self) -> list[str]:
        """The processes of the server: the first one and all that it started, by their session; not those that only wait to be reaped."""
        command = ["ps", "-o", "pid=,stat=,args=", "-s", str(self.process.pid)]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
        return [line for line in shown.splitlines() if not line.split()[1].startswith("Z")]


@pytest.fixture(scope="module", params=PLUGINS)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plugin: str = request.param
    folder = tmp_path_factory.mktemp(plugin)
    samples = [sys.executable, "-m", "encoder_checkpoints.samples", str(folder), plugin]
    done = subprocess.run(samples, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "artifacts" / plugin


@contextmanager
def served(artifact: Path, *options: str) -> Iterator[Server]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "encoder_plugins",
        "serve",
        str(artifact),
        "--port",
        str(port),
        "--api-servers",
        "1",
    ]
    log = artifact.parent / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *options], start_new_session=True, stdout=output, stderr=output)
    found = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{found.url}/health").status_code == 200:
                    break
            time.sleep(0.2)
        assert process.poll() is None, log.read_text(errors="replace")[-6000:]
        yield found
    finally:
        # engines that share the GPU have process groups of their own
        for line in found.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        process.wait()


def daemons() -> set[str | None]:
    """The folders of the daemons through which engines share a GPU, those of other servers too."""
    shown = subprocess.run(["pgrep", "-f", f"^(/.*/)?{mps.CONTROL} -d"], capture_output=True, text=True).stdout
    return {pipes(int(number)) for number in shown.split()} - {None}


def pipes(process: int) -> str | None:
    """The folder of the daemon that a process uses, or is."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{process}/environ").read_text().split("\0"):
            if variable.startswith(f"{mps.PIPES}="):
                return variable.partition("=")[2]
    return None


def alike(found: Any, expected: Any) -> bool:
    """Whether two answers say the same; in other company, sums of 16-bit numbers are taken in another order."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return bool(abs(found - expected) <= 0.02) if isinstance(expected, float) else bool(found == expected)


def test_however_the_weights_are_read_the_answer_is_the_same(artifact: Path) -> None:
    data = DATA[artifact.name]
    with served(artifact) as server:
        expected = server.answer(data)
    assert expected
    for way in WAYS:
        with served(artifact, "--", "--load-format", way) as server:
            assert server.answer(data) == expected, way


async def test_engines_that_share_a_gpu_lose_no_request_and_end_together(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the last one by its number, which an engine would look for among those of the daemon
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    numbers = os.environ.get(mps.VISIBLE) or str(len(listed) - 1)
    monkeypatch.setenv(mps.VISIBLE, numbers.rpartition(",")[2])
    data = DATA[artifact.name]
    with served(artifact, "--engines", "2") as server:
        expected = server.answer(data)
        assert len(server.family()) >= 4
        # they run side by side where the driver came with its daemon
        (folder,) = {pipes(int(line.split()[0])) for line in server.family()} - {None} or {None}
        assert shutil.which(mps.CONTROL) is None or folder in daemons()
        answers: Counter[int] = Counter()
        stopping, enough = asyncio.Event(), asyncio.Event()

        async def client() -> None:
            # a connection each: they spread over both engines
            async with httpx.AsyncClient(timeout=120) as session:
                while not enough.is_set():
                    try:
                        found = await session.post(f"{server.url}/pooling", json={"data": data})
                    except httpx.ConnectError:
                        assert stopping.is_set()
                        return
                    answers[found.status_code] += 1
                    if found.status_code == 200:
                        assert alike(found.json()["data"], expected)
                    else:
                        await asyncio.sleep(0.05)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        while answers[200] < 200:
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in clients)
        stopping.set()
        before = answers[200]
        server.process.terminate()
        while answers[200] < before + 50 and not all(task.done() for task in clients):
            await asyncio.sleep(0.05)
        # a Service sends nothing more to a pod that ends
        enough.set()
        await asyncio.gather(*clients)
        assert set(answers) <= {200, 503}
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, server.process.wait, 60) == 0
        # nothing of them holds the GPU; multiprocessing's own helpers end when they see that they are alone
        end = time.monotonic() + 5
        while server.family() and time.monotonic() < end:
            await asyncio.sleep(0.1)
        assert server.family() == []
        assert folder not in daemons()
