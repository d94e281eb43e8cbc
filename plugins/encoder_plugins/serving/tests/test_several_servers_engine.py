"""Several API servers behind one port are one server to clients: ready, limited and counted together, stopped without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from encoder_checkpoints import samples
from encoder_plugins import catalog
from encoder_plugins.serving.command import SHUTDOWN_SECONDS
from encoder_plugins.tests.free_port import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

IN_FLIGHT = 4
ROOT = Path(__file__).parents[4]
BODY = {"data": {"texts": ["word " * 30] * 16, "dimensions": 2}}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples.prepare(samples.of(catalog.get("sentence_transformer")), tmp_path_factory.mktemp("samples"))


@pytest.fixture(params=[(1, 2)])
def served(
    request: pytest.FixtureRequest, artifact: Path, tmp_path: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A tiny model behind so many engines and API servers of each, by the command alone: no digest, no name, no accelerator."""
    engines, servers = request.param
    port = free_port()
    command = [sys.executable, "-m", "encoder_plugins", "serve", str(artifact)]
    command += ["--port", str(port), "--max-in-flight", str(IN_FLIGHT)]
    command += ["--engines", str(engines), "--api-servers", str(servers)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(healthy(url, process, tmp_path / "log"))
        yield url, process
    finally:
        # engines have process groups of their own, and a supervisor that is killed can't end them
        for pid in family(process, "pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        process.wait()


async def healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with httpx.AsyncClient() as client:
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')[-4000:]}")


def family(process: subprocess.Popen[bytes], column: str) -> list[str]:
    """What `ps` says, in one of its columns, of the server and of all that it started."""
    command = ["ps", "-o", f"{column}=", "-s", str(process.pid)]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def api_servers(process: subprocess.Popen[bytes]) -> int:
    """Count the processes of the server that listen to clients, by the names that vLLM gives them."""
    return sum("APIServer" in line for line in family(process, "args"))


def documented() -> set[str]:
    """Return the engine's own metrics that the documentation and the chart speak of."""
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "charts").rglob("*.json"), *(ROOT / "charts").rglob("*.yaml")]
    return {name for file in files for name in re.findall(r"\bvllm:[a-z_]+", file.read_text())}


async def numbers(url: str) -> dict[str, float]:
    """Return what the metrics page says, read on a connection of its own: either server may answer."""
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"{url}/metrics")).text
    found: defaultdict[str, float] = defaultdict(float)
    wanted = documented()
    for metric in text_string_to_metric_families(page):
        for sample in metric.samples:
            if sample.name.startswith("encoder_serving_") or sample.name in wanted:
                # the engine's are split by engine and by how a request ended
                found[sample.name.removeprefix("encoder_serving_") + sample.labels.get("reason", "")] += sample.value
    return dict(found)


async def the_page_is_that_of_both(url: str) -> None:
    """Use so many connections that both servers get some, and compare what each reports for all of them."""
    bodies = [BODY] * 12 + [{"data": {"texts": []}}, {"data": {"texts": ["a"]}, "model": "another"}]
    for body in bodies:
        async with httpx.AsyncClient(timeout=120) as client:
            await client.post(f"{url}/pooling", json=body)
    pages = [await numbers(url) for _ in range(8)]
    assert all(page == pages[0] for page in pages)
    found = pages[0]
    assert (found["requests_total"], found["in_flight"], found["in_flight_limit"]) == (14, 0, IN_FLIGHT)
    assert (found["rejected_totalinvalid"], found["rejected_totalunknown_model"]) == (1, 1)
    assert found["tokens_total"] == found["vllm:prompt_tokens_total"] > 12 * 16 * 30
    # as docs/autoscaling.md has it, and with the names that the chart's dashboard queries
    assert documented() <= set(found)
    assert found["vllm:request_success_total"] == 12 * 16
    assert found["vllm:num_requests_waiting"] == found["vllm:num_requests_running"] == 0


async def test_two_servers_are_one_to_their_clients(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    url, process = served
    assert api_servers(process) == 2
    await the_page_is_that_of_both(url)
    answers: Counter[int] = Counter()
    lost: list[str] = []
    enough = asyncio.Event()
    stopping = asyncio.Event()

    async def client() -> None:
        # a connection each: they spread over both servers
        async with httpx.AsyncClient(timeout=120) as session:
            while not enough.is_set():
                try:
                    response = await session.post(f"{url}/pooling", json=BODY)
                except httpx.ConnectError:
                    # nobody listens any more; no request was taken
                    assert stopping.is_set()
                    return
                except httpx.HTTPError as error:
                    lost.append(repr(error))
                    return
                answers[response.status_code] += 1
                if response.status_code == 503:
                    assert response.headers["retry-after"] == "1"
                    await asyncio.sleep(0.05)

    clients = [asyncio.create_task(client()) for _ in range(12)]
    while answers[200] < 60 or not answers[503]:
        await asyncio.sleep(0.05)
        assert process.poll() is None
    # two servers that count at the same moment may both let one more in
    assert (await numbers(url))["in_flight"] <= IN_FLIGHT + 2
    stopping.set()
    process.terminate()
    before = answers[200]
    while answers[200] < before + 20 and not all(task.done() for task in clients):
        await asyncio.sleep(0.05)
    enough.set()
    await asyncio.gather(*clients)
    assert lost == []
    assert set(answers) == {200, 503}
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, process.wait, 90) == 0


@pytest.mark.soak
async def test_a_second_interrupt_ends_all_processes_and_requests_at_once(
    served: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, process = served
    found = subprocess.run(["pgrep", "-s", str(process.pid), "-f", "EngineCore"], capture_output=True)
    engine = int(found.stdout)
    # what waits for it would wait for a minute and more
    os.kill(engine, signal.SIGSTOP)
    async with httpx.AsyncClient(timeout=120) as first, httpx.AsyncClient(timeout=120) as second:
        flying = [asyncio.create_task(session.post(f"{url}/pooling", json=BODY)) for session in (first, second)]
        while (await numbers(url))["in_flight"] < len(flying):
            await asyncio.sleep(0.05)
        # as `docker run` passes Ctrl-C on: to the first process alone
        process.send_signal(signal.SIGINT)
        async with httpx.AsyncClient(timeout=120) as third:
            while (await third.post(f"{url}/pooling", json={})).headers.get("connection") != "close":
                await asyncio.sleep(0.05)
        assert not any(task.done() for task in flying)
        process.send_signal(signal.SIGINT)
        for response in await asyncio.gather(*flying):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert "the server was stopped before it had answered" in response.text
    ending = asyncio.get_running_loop().run_in_executor(None, process.wait, SHUTDOWN_SECONDS - 10)
    assert await ending == 0
    # what tidies up behind all others ends a moment later
    async with asyncio.timeout(60):
        while any(not state.startswith("Z") for state in family(process, "stat")):
            await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.parametrize("served", [(2, 2)], indirect=True)
async def test_two_engines_of_two_servers_each_are_counted_as_one(served: tuple[str, subprocess.Popen[bytes]]) -> None:
    url, process = served
    assert api_servers(process) == 4
    await the_page_is_that_of_both(url)
    # one engine that dies ends all of them, and that is a failure
    found = subprocess.run(["pgrep", "-s", str(process.pid), "-f", "EngineCore"], capture_output=True)
    first, _ = map(int, found.stdout.split())
    os.kill(first, signal.SIGKILL)
    assert await asyncio.get_running_loop().run_in_executor(None, process.wait, 90) > 0
