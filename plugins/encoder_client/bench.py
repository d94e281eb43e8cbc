"""Measures a server: clients that each send their next request when the last one is answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from encoder_client import embeddings, entities, rows
from encoder_client.async_client import AsyncClient
from encoder_client.context import Context
from encoder_client.errors import ArgumentError, EncoderClientError
from encoder_client.extraction import calls
from encoder_client.extraction.schema import Schema
from encoder_client.plots import Measured
from encoder_client.server import Server
from encoder_client.settings import Settings
from encoder_client.work import Work

_SENTENCE = (
    "the river carried small boats past quiet gardens while villagers in Hamburg talked about weather music bread and"
    " the election of Angela Merkel who visited the Siemens works near Munich on a rainy Monday in October"
)
_LABELS = ("city", "company", "date", "animal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent.

    Attributes:
        requests: Measured requests, 1 or more.
        warm: Requests before, which do not count.
        clients: Requests in flight at the same time, 1 or more.
        texts: Texts of a request, 1 or more.
        words: Words of a text, 1 or more.
        labels: Labels, for entities; None for some of our own.
        query: Whether texts are queries, for vectors and rows.
    """

    requests: int = 200
    warm: int = 8
    clients: int = 8
    texts: int = 1
    words: int = 64
    labels: Sequence[str] | None = None
    query: bool = False

    def __post_init__(self) -> None:
        for name in ("requests", "clients", "texts", "words"):
            if getattr(self, name) < 1:
                raise ArgumentError("it must be 1 or more", param=name)


def sample(number: int, words: int) -> str:
    """Return a text of a number of words; different for different numbers, the same in every run."""
    known = _SENTENCE.split()
    return " ".join(known[(number * 7 + step * step + step) % len(known)] for step in range(words))


def planned(server: Server, load: Load) -> Callable[[Context, Sequence[str]], Work[Any]]:
    """Return what plans a request of the server's family.

    Raises:
        ArgumentError: The load has what requests of that family do not have.
    """
    has = server.fields_for(labels=load.labels is not None)
    of_entities = not has.isdisjoint({"labels", "schema"})
    if of_entities and load.query:
        raise ArgumentError("the server finds entities, in texts that are no queries", param="query")
    if not of_entities and load.labels is not None:
        raise ArgumentError("the server finds no entities: it answers vectors or rows", param="labels")
    labels = list(_LABELS if load.labels is None else load.labels)
    if "labels" in has:
        return lambda context, texts: entities.inference(context, texts, labels, batch_size=len(texts))
    if "schema" in has:
        schema = Schema().entities(labels)
        return lambda context, texts: calls.batch_extract(context, texts, schema, batch_size=len(texts))
    plan: Any = rows if "pool_factor" in has else embeddings
    encode = plan.encode_query if load.query else plan.encode_document
    return lambda context, texts: encode(context, texts, batch_size=len(texts), show_progress_bar=False)


async def measure(settings: Settings, load: Load) -> Measured:
    """Send the load, and return what the clients saw. Nothing is sent again: a full server shows.

    Raises:
        EncoderClientError: The server cannot be reached, or answers no request.
    """
    async with AsyncClient(settings) as client:
        server = await client.server()
        plan = planned(server, load)
        context = Context(server=server, settings=settings)
        latencies: list[float] = []
        failed: Counter[str] = Counter()
        last: list[EncoderClientError] = []

        async def send(number: int) -> None:
            texts = [sample(number * load.texts + place, load.words) for place in range(load.texts)]
            started = time.perf_counter()
            try:
                await client.run(plan(context, texts))
            except EncoderClientError as error:
                failed[type(error).__name__] += 1
                last.append(error)
            else:
                latencies.append(time.perf_counter() - started)

        async def one_after_another(numbers: Any) -> None:
            for number in numbers:
                await send(number)

        async def send_all(first: int, count: int) -> None:
            numbers = iter(range(first, first + count))
            await asyncio.gather(*(one_after_another(numbers) for _ in range(load.clients)))

        await send_all(0, load.warm)
        latencies.clear()
        failed.clear()
        started = time.perf_counter()
        await send_all(load.warm, load.requests)
        seconds = time.perf_counter() - started
    if not latencies:
        raise last[-1]
    return Measured(seconds=seconds, latencies=latencies, texts=load.texts, failed=dict(failed))
