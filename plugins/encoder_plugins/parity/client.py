"""Send the reference inputs to a server, and return the verdict.

Runs in the operator's image: neither torch nor vLLM. ``plan`` decides what is sent, and ``verdict`` judges.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from encoder_plugins import catalog
from encoder_plugins.artifact import reference as references
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.compatibility import PLUGIN_VERSION_HEADER
from encoder_plugins.errors import PrepareError, Unmeasurable, WrongAnswer
from encoder_plugins.parity import plan as plans
from encoder_plugins.parity import verdict as verdicts
from encoder_plugins.parity.plan import Batch
from encoder_plugins.parity.protocol import Parity
from encoder_plugins.parity.verdict import Finding, Verdict
from encoder_plugins.plugin import resolve

# more than 256 vectors of 8 192 numbers, written as decimals
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# an answer of vLLM to GET /version has some dozen bytes
MAX_VERSION_BYTES = 4096
_VERSION_SECONDS = 5.0
_VERSION_CHARACTERS = 64
EXIT = {"Passed": 0, "Failed": 1, "Inconclusive": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test, and what it is measured with.

    Attributes:
        url: Where it listens.
        name: The model's name in requests.
        dtype: The engine's dtype, which decides the tolerance.
        quantization: What the engine quantizes weights and activations to, which has a tolerance of its own; None for nothing.
        thresholds: Limits that replace the plugin's own, by metric.
        timeout: Seconds for the whole parity check.
        binding: What the operator knows about the pod; returned in the verdict.
        limits: The limits that the server was started with, by name; one that is not here is the plugin's own, which every
            request of a check keeps.
        api_key: Sent as ``Authorization: Bearer``; None sends none.
    """

    url: str
    name: str
    dtype: str
    thresholds: Mapping[str, str]
    timeout: float
    binding: Mapping[str, Any]
    limits: Mapping[str, int] = field(default_factory=dict)
    quantization: str | None = None
    api_key: str | None = field(default=None, repr=False)


def run(artifact: Path, target: Target) -> Verdict:
    """Compare a server with an artifact's reference outputs; log every finding as a line of JSON."""
    try:
        reference = references.read(artifact)
    except (PrepareError, OSError) as error:
        message = f"the artifact's reference cannot be read: {error}"
        return Verdict(result="Inconclusive", message=message, binding=target.binding)
    try:
        parity: Parity = resolve(catalog.get(reference.plugin).parity)
        verdicts.require_finite(reference)
        tolerance = verdicts.tolerance_of(parity, target.dtype, target.thresholds, quantization=target.quantization)
        recorded = reference.cases
        reference = replace(reference, cases=tuple(plans.answerable(parity, reference.cases, target.limits)))
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
        print(json.dumps(_logged(finding)))
    verdict = verdicts.judge(findings, tolerance, reference, target.binding)
    verdict = verdicts.with_quantization(verdict, target.quantization)
    verdict = verdicts.with_limits(verdict, recorded, reference.cases)
    return replace(verdict, versions=asyncio.run(versions(target.url)))


def report(verdict: Verdict, termination_log: Path | None) -> int:
    """Print the verdict, write it where kubelet reads it, and return the exit status."""
    text = verdict.encode()
    if termination_log is not None:
        try:
            termination_log.write_text(text)
        except OSError as error:
            print(f"{termination_log}: {error}", file=sys.stderr)
    print(text, flush=True)
    return EXIT[verdict.result]


async def versions(url: str) -> dict[str, str]:
    """Return the versions that the server reports: `vllm`, and `plugin` where it runs the plugins. Empty if it reports none."""
    timeout = aiohttp.ClientTimeout(total=_VERSION_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{_base(url)}/version", allow_redirects=False) as response,
        ):
            body = json.loads(await response.content.read(MAX_VERSION_BYTES)) if response.status == 200 else None
            plugin = response.headers.get(PLUGIN_VERSION_HEADER)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        # the versions do not decide anything
        return {}
    vllm = body.get("version") if isinstance(body, dict) else None
    found = {"vllm": vllm, "plugin": plugin}
    return {name: value[:_VERSION_CHARACTERS] for name, value in found.items() if isinstance(value, str)}


async def measure(parity: Parity, reference: Reference, target: Target) -> list[Finding]:
    """Send every case in every way to a server, and compare the answers.

    Raises:
        Unmeasurable: The server cannot be reached, or takes too long.
    """
    connector = aiohttp.TCPConnector(limit=plans.CONCURRENCY)
    headers = {} if target.api_key is None else {"authorization": f"Bearer {target.api_key}"}
    # the time is bounded as a whole; no single request has to be fast
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        server = Server(session, target.url, target.name)
        try:
            async with asyncio.timeout(target.timeout):
                return await _measure_all(parity, reference, server, target.limits)
        except TimeoutError:
            raise Unmeasurable(f"the parity check took longer than {target.timeout:g} s") from None


async def _measure_all(
    parity: Parity, reference: Reference, server: Server, limits: Mapping[str, int]
) -> list[Finding]:
    findings: list[Finding] = []
    for step in plans.plan(parity, reference.cases, limits):
        free = asyncio.Semaphore(step.concurrency)
        jobs = [_measure(parity, reference, server, step.name, batch, free) for batch in step.batches]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(job) for job in jobs]
        except ExceptionGroup as group:
            # the first is enough to report; the others were cancelled because of it
            raise group.exceptions[0] from None
        found = [finding for task in running for finding in task.result()]
        findings += [*found, *verdicts.pooled(parity, step.name, found)]
    return findings


async def _measure(
    parity: Parity, reference: Reference, server: Server, sent: str, batch: Batch, free: asyncio.Semaphore
) -> list[Finding]:
    async with free:
        try:
            content = await server.post(batch.variant.route, parity.body(batch.cases, batch.variant))
        except WrongAnswer as error:
            return verdicts.wrong(batch, sent, error)
    return verdicts.examine(parity, reference, sent, batch, content)


class Server:
    """The server under test."""

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str) -> None:
        self._session = session
        self._url = _base(url)
        self._name = name

    async def post(self, route: str, body: Mapping[str, Any]) -> bytes:
        """Return the body of the answer. While the server is full, the request is repeated until the caller's timeout.

        Raises:
            WrongAnswer: The server refused the request, or its answer is too large.
            Unmeasurable: The server cannot be reached, or fails.
        """
        content = {"model": self._name, **body}
        while True:
            try:
                async with self._session.post(self._url + route, json=content, allow_redirects=False) as response:
                    if response.status == 503 and "Retry-After" in response.headers:
                        await asyncio.sleep(_seconds(response.headers["Retry-After"]))
                        continue
                    return _checked(response.status, await _content(response))
            except (aiohttp.ClientError, OSError) as error:
                raise Unmeasurable(f"the server cannot be reached: {type(error).__name__}: {error}"[:300]) from error


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/pooling")


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise WrongAnswer(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def _checked(status: int, content: bytes) -> bytes:
    if status >= 500 or status in (401, 403, 408, 429):
        raise Unmeasurable(f"the server answered {status}: {content[:200]!r}")
    if status != 200:
        raise WrongAnswer(f"the server answered {status}: {content[:200]!r}")
    return content


def _seconds(retry_after: str) -> float:
    return min(5.0, float(retry_after)) if retry_after.isascii() and retry_after.isdecimal() else 1.0


def _logged(finding: Finding) -> dict[str, Any]:
    fields = {
        "case": finding.case,
        "sent": finding.sent,
        "metrics": dict(finding.metrics),
        "wrong": finding.wrong,
        "notes": list(finding.notes),
    }
    return {name: value for name, value in fields.items() if value}
