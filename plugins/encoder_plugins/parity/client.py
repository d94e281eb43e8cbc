"""Asks a server what the original library was asked, and says Passed, Failed or Inconclusive.

Runs in the operator's image: neither torch nor vLLM. What is asked and how it is judged is in ``comparison``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from encoder_plugins import catalog
from encoder_plugins.errors import Unmeasurable, WrongAnswer
from encoder_plugins.parity import verdict as comparison
from encoder_plugins.parity.verdict import Batch, Finding, Parity, Reference, Verdict
from encoder_plugins.plugin import resolve

# more than 256 vectors of 8 192 numbers, written out
ANSWER_BYTES = 64 * 1024 * 1024
EXIT = {"Passed": 0, "Failed": 1, "Inconclusive": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test, and what it is measured with.

    Attributes:
        url: Where it listens.
        name: What it calls the model.
        dtype: The number format that its tolerance depends on.
        thresholds: Limits that replace the plugin's own, by metric.
        timeout: Seconds for the whole comparison.
        binding: Echoed in the verdict: what the operator knows about the pod.
    """

    url: str
    name: str
    dtype: str
    thresholds: Mapping[str, str]
    timeout: float
    binding: Mapping[str, Any]


def run(artifact: Path, target: Target) -> Verdict:
    """Compare a server with an artifact's reference; log every finding as a line of JSON."""
    try:
        reference = comparison.read_reference(artifact)
    except Unmeasurable as error:
        return Verdict(result="Inconclusive", message=str(error), binding=target.binding)
    parity: Parity = resolve(catalog.get(reference.plugin).parity)
    try:
        tolerance = comparison.bounds(parity, target.dtype, target.thresholds)
        findings = asyncio.run(measure(parity, reference, target))
    except (Unmeasurable, ValueError) as error:
        return Verdict(
            result="Inconclusive",
            message=str(error),
            artifact=reference.artifact,
            reference=reference.digest,
            binding=target.binding,
            cases=len(reference.cases),
        )
    for finding in findings:
        print(json.dumps({key: value for key, value in asdict(finding).items() if value}))
    return comparison.judge(findings, tolerance, reference, target.binding)


def report(verdict: Verdict, termination_log: Path | None) -> int:
    """Print the verdict, leave it where kubelet looks for it, and return the exit status."""
    text = verdict.encode()
    if termination_log is not None:
        try:
            termination_log.write_text(text)
        except OSError as error:
            print(f"{termination_log}: {error}", file=sys.stderr)
    print(text, flush=True)
    return EXIT[verdict.result]


async def measure(parity: Parity, reference: Reference, target: Target) -> list[Finding]:
    """Ask a server everything in every way.

    Raises:
        Unmeasurable: It can't be asked, or takes too long.
    """
    connector = aiohttp.TCPConnector(limit=comparison.AT_ONCE)
    # the time is bounded as a whole; no single request has to be fast
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        server = Server(session, target.url, target.name)
        try:
            async with asyncio.timeout(target.timeout):
                return await _ask_all(parity, reference, server)
        except TimeoutError:
            raise Unmeasurable(f"the comparison took longer than {target.timeout:g} s") from None


async def _ask_all(parity: Parity, reference: Reference, server: Server) -> list[Finding]:
    findings: list[Finding] = []
    for step in comparison.plan(parity, reference.cases):
        free = asyncio.Semaphore(step.at_once)
        jobs = [_ask_one(parity, reference, server, step.name, batch, free) for batch in step.batches]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(job) for job in jobs]
        except ExceptionGroup as group:
            # one is enough to know, and the others were cancelled for it
            raise group.exceptions[0] from None
        findings += [finding for task in running for finding in task.result()]
    return findings


async def _ask_one(
    parity: Parity, reference: Reference, server: Server, asked: str, batch: Batch, free: asyncio.Semaphore
) -> list[Finding]:
    async with free:
        try:
            answer = await server.ask(parity.data(batch.cases, batch.encoding))
        except WrongAnswer as error:
            return [Finding(case=case["id"], asked=asked, wrong=str(error)) for case in batch.cases]
    return comparison.examine(parity, reference, asked, batch, answer)


class Server:
    """The server under test: one question, one answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/pooling") + "/pooling"
        self._name = name

    async def ask(self, data: Mapping[str, Any]) -> Any:
        """Return the answer's data. A server that is full is asked again until the caller's time is up.

        Raises:
            WrongAnswer: It refused the request, or its answer is none.
            Unmeasurable: It can't be reached, or fails by itself.
        """
        body = {"model": self._name, "data": dict(data)}
        while True:
            try:
                async with self._session.post(self._url, json=body, allow_redirects=False) as response:
                    if response.status == 503 and "Retry-After" in response.headers:
                        await asyncio.sleep(_seconds(response.headers["Retry-After"]))
                        continue
                    return _answer(response.status, await _content(response))
            except (aiohttp.ClientError, OSError) as error:
                raise Unmeasurable(f"the server can't be asked: {type(error).__name__}: {error}"[:300]) from error


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > ANSWER_BYTES:
            raise WrongAnswer(f"the answer is larger than {ANSWER_BYTES} bytes")
    return bytes(content)


def _answer(status: int, content: bytes) -> Any:
    if status >= 500 or status in (408, 429):
        raise Unmeasurable(f"the server answered {status}: {content[:200]!r}")
    if status != 200:
        raise WrongAnswer(f"the server answered {status}: {content[:200]!r}")
    try:
        return json.loads(content)["data"]
    except (ValueError, KeyError, TypeError):
        raise WrongAnswer("the answer is no JSON object with data") from None


def _seconds(retry_after: str) -> float:
    return min(5.0, float(retry_after)) if retry_after.isascii() and retry_after.isdecimal() else 1.0
