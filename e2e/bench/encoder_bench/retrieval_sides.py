"""The sides of a retrieval comparison: each is started, and then measures every cell."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from encoder_bench import load, retrieval_peers, retrieval_servers, server
from encoder_bench.peer_process import started
from encoder_bench.retrieval_checkpoint import Kind
from encoder_bench.retrieval_peers import QUERY, TEXTS, Cell, Task
from encoder_bench.retrieval_servers import PEERS
from encoder_bench.sides import package_path
from encoder_plugins.prep import reference_environment

SIDES = ("sentence_transformers", "pylate", "ours", "http", *PEERS)
# so that requests of 32 texts of 8 192 tokens, and 1 000 documents of 256, are taken
LIMITS = {"texts": 1000, "body_bytes": 64 << 20, "characters": 1 << 26, "in_flight": 4096}
# an answer of a cell must come within its measured time: more tokens at the same time only wait in a queue
MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        tokens: Of each text.
        side: Who.
        load: In which batches, or from how many clients.
        rate: Texts a second.
        share: Of the arithmetic limit; 0 where nothing was computed from it.
        scored: Whether they were scored by a query, rather than encoded.
        notes: Further figures.
    """

    tokens: int
    side: str
    load: str
    rate: float
    share: float = 0.0
    scored: bool = False
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What all sides get.

    Attributes:
        kind: Of the checkpoint.
        texts: Texts by their tokens.
        documents: What is scored; empty for nothing.
        document_tokens: Of each of them.
    """

    kind: Kind
    texts: Mapping[int, Sequence[str]]
    documents: Sequence[str]
    document_tokens: int


Measure = Callable[[], Iterator[Row]]


class Sides:
    """Starts sides."""

    def __init__(self, given: argparse.Namespace, material: Material, folder: Path, workers: load.Workers) -> None:
        """Take the command's arguments, the texts, a folder for logs, and the processes that send requests."""
        self._given = given
        self._material = material
        self._folder = folder
        self._workers = workers
        # several engines share a GPU: how much each may take is what vLLM compares with what is free
        self._arguments = ("--gpu-memory-utilization", str(given.memory_share)) if given.memory_share else ()

    def open(self, side: str) -> AbstractContextManager[Measure]:
        """Return what starts a side, and ends it; it gives what measures all lines.

        A side that ends by itself, or takes too long, is a `RuntimeError` with the end of its log.
        """
        if side == "http":
            return self._http()
        if side in PEERS:
            return self._server(side)
        return self._process(side)

    def _environment(self, side: str) -> dict[str, str]:
        # sides that start together would write the same compiled graphs at the same time
        return {**os.environ, "VLLM_CACHE_ROOT": str(self._folder / f"cache-{side}"), "HF_HUB_OFFLINE": "1"}

    @contextlib.contextmanager
    def _process(self, side: str) -> Iterator[Measure]:
        given, material = self._given, self._material
        task = Task(
            source=str(given.source),
            artifact=str(given.artifact),
            pooled=material.kind.pooled,
            device=given.device,
            dtype=given.dtype,
            texts={str(tokens): texts for tokens, texts in material.texts.items()},
            documents=material.documents,
            batch_sizes=given.batch_sizes,
            repeats=given.repeats,
            seconds=given.seconds,
            limits=LIMITS,
            arguments=self._arguments,
        )
        command = [self._interpreter(side), "-m", "encoder_bench.retrieval_peers", side]
        environment = self._environment(side) | {"PYTHONPATH": package_path()}
        log = self._folder / f"{side}.log"
        with started(command, asdict(task), log, environment, given.side_seconds) as cells:

            def measure() -> Iterator[Row]:
                for cell in (Cell(**cell) for cell in cells):
                    tokens = cell.tokens or material.document_tokens
                    yield Row(tokens=tokens, side=cell.how, load=cell.load, rate=cell.rate, scored=cell.scored)

            yield measure

    def _interpreter(self, side: str) -> str:
        if side == "ours":
            return sys.executable
        for assignment in self._given.python:
            library, _, path = assignment.partition("=")
            if library == side:
                return str(path)
        return str(reference_environment.python(reference_environment.provide(side)))

    @contextlib.contextmanager
    def _http(self) -> Iterator[Measure]:
        given, material = self._given, self._material
        arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype]
        arguments += [part for name, value in LIMITS.items() for part in ("--limit", f"{name}={value}")]
        if given.engines:
            arguments += ["--engines", str(given.engines)]
        if given.api_servers:
            arguments += ["--api-servers", str(given.api_servers)]
        if self._arguments:
            arguments += ["--", *self._arguments]
        log, environment = self._folder / "http.log", self._environment("http")
        with server.served(given.artifact, log, *arguments, environment=environment) as at:

            def measure() -> Iterator[Row]:
                for tokens, texts in material.texts.items():
                    for clients, number in self._ways(tokens):
                        parts = [texts[start : start + number] for start in range(0, len(texts) - number + 1, number)]
                        bodies = [load.body(retrieval_peers.data(part)) for part in parts]
                        yield self._loaded(at, "/pooling", bodies, tokens, clients, number, "ours, HTTP")
                if material.documents and not material.kind.pooled:
                    documents, tokens = material.documents, material.document_tokens
                    encoded = [load.body(retrieval_peers.data(documents))]
                    yield self._loaded(at, "/pooling", encoded, tokens, 1, len(documents), "ours, HTTP")
                    body = {"model": "bench", "query": QUERY, "documents": list(documents), "top_n": 10}
                    content = [json.dumps(body).encode()]
                    yield self._loaded(at, "/rerank", content, tokens, 1, len(documents), "ours, HTTP", scored=True)

            yield measure

    @contextlib.contextmanager
    def _server(self, side: str) -> Iterator[Measure]:
        """Serve the checkpoint by another server, with its own settings and none of our code."""
        kind, peer = self._material.kind, PEERS[side]
        with retrieval_servers.served(self._given, kind, side, self._folder) as at:

            def measure() -> Iterator[Row]:
                for tokens, texts in self._material.texts.items():
                    for clients, number in self._ways(tokens):
                        if number > (peer.most_texts or number):
                            continue
                        parts = [texts[start : start + number] for start in range(0, len(texts) - number + 1, number)]
                        bodies = [json.dumps(peer.body(kind, part)).encode() for part in parts]
                        yield self._loaded(at, "/pooling", bodies, tokens, clients, number, peer.name)

            yield measure

    def _ways(self, tokens: int) -> Iterator[tuple[int, int]]:
        for way in self._given.clients:
            clients, number = map(int, way.split("x"))
            if clients * number * tokens <= MOST_TOKENS and number <= len(self._material.texts[tokens]):
                yield clients, number

    def _loaded(
        self,
        at: server.Server,
        path: str,
        bodies: Sequence[bytes],
        tokens: int,
        clients: int,
        number: int,
        side: str,
        *,
        scored: bool = False,
    ) -> Row:
        given = self._given
        before = server.processor_seconds(at.process.pid)
        found = self._workers.run(f"{at.url}{path}", bodies, clients, given.seconds, given.warm)
        taken = (server.processor_seconds(at.process.pid) - before) / max(1, found.all_requests * number)
        notes = (
            f"p50 {found.median * 1000:.3g} ms, p99 {found.percentile(0.99) * 1000:.3g} ms,"
            f" {taken * 1000:.3g} ms of processor time a text"
        )
        way = f"{clients} client{'s' * (clients > 1)} x {number} text{'s' * (number > 1)}"
        rate = found.requests * number / found.seconds
        return Row(tokens=tokens, side=side, load=way, rate=rate, scored=scored, notes=notes)


__all__ = ["LIMITS", "SIDES", "TEXTS", "Material", "Row", "Sides"]
