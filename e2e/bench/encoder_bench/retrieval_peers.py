"""The sides of a retrieval comparison that run in a process of their own: the two libraries, and ours without a server.

`python -m encoder_bench.retrieval_peers SIDE` reads its task, a line of JSON, starts the side, and prints that it is ready; behind
another line it measures, and prints a line of JSON for each cell. It runs in the environment of its library: the standard library, and
what that environment has.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from encoder_bench import cells

QUERY = "Which of these passages says how a function is called?"
# of a request of ours
TEXTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a side has to do.

    Attributes:
        source: The checkpoint as published, for the libraries.
        artifact: The prepared one, for us.
        pooled: Whether there is one vector for each text.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        texts: The texts of each length, by its tokens.
        documents: What is scored; empty for nothing.
        batch_sizes: Those that a library may choose from.
        repeats: Measurements at each batch size; the fastest counts.
        seconds: Of each measurement of ours.
        limits: Of ours.
        arguments: Of ours, for vLLM.
    """

    source: str
    artifact: str
    pooled: bool
    device: str
    dtype: str
    texts: Mapping[str, Sequence[str]]
    documents: Sequence[str]
    batch_sizes: Sequence[int]
    repeats: int
    seconds: float
    limits: Mapping[str, int]
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a side did with texts of one length.

    Attributes:
        tokens: Of each text; 0 for the documents to score.
        how: What computed them.
        load: In which batches or requests.
        rate: Texts a second.
        scored: Whether they were scored by a query, rather than encoded.
    """

    tokens: int
    how: str
    load: str
    rate: float
    scored: bool = False


Encode = Callable[[Sequence[str], int, bool], Any]
# measures all cells, with a model that is loaded
Cells = Callable[[], Iterator[Cell]]


def sentence_transformers(task: Task) -> Cells:
    """Load sentence-transformers' model."""
    import torch

    options: dict[str, Any] = {"device": task.device, "model_kwargs": {"dtype": getattr(torch, task.dtype)}}
    if task.pooled:
        from sentence_transformers import SentenceTransformer as Library
    else:
        from sentence_transformers import MultiVectorEncoder as Library
    model = Library(task.source, local_files_only=True, **options).eval()

    def encode(texts: Sequence[str], size: int, queries: bool) -> Any:
        call = model.encode_query if queries else model.encode_document
        return call(list(texts), batch_size=size, show_progress_bar=False, convert_to_numpy=True)

    def score(query: Any, documents: Any) -> object:
        return model.similarity(query, documents)

    return partial(_library, task, "sentence-transformers", encode, score)


def pylate(task: Task) -> Cells:
    """Load PyLate's model."""
    import torch
    from pylate import models, rank

    options = {"dtype": getattr(torch, task.dtype)}
    model = models.ColBERT(task.source, local_files_only=True, device=task.device, model_kwargs=options).eval()

    def encode(texts: Sequence[str], size: int, queries: bool) -> Any:
        return model.encode(list(texts), batch_size=size, is_query=queries, show_progress_bar=False)

    def score(query: Any, documents: Any) -> object:
        numbers = [list(range(len(documents)))]
        return rank.rerank(documents_ids=numbers, queries_embeddings=query, documents_embeddings=[documents])

    return partial(_library, task, "pylate", encode, score)


def _library(task: Task, name: str, encode: Encode, score: Callable[[Any, Any], object]) -> Iterator[Cell]:
    """Give a library all texts of a length at once, which it sorts by length, at each batch size; the fastest counts."""
    encode(task.texts[min(task.texts, key=int)][:4], 4, False)
    for length, texts in task.texts.items():
        rate, size = _best(task, texts, partial(_encoded, encode, texts))
        yield Cell(tokens=int(length), how=name, load=f"batches of {size}", rate=rate)
    if task.documents and not task.pooled:

        def rank(size: int) -> object:
            return score(encode([QUERY], 1, True), encode(task.documents, size, False))

        rate, size = _best(task, task.documents, rank)
        yield Cell(tokens=0, how=name, load=f"batches of {size}, and scores", rate=rate, scored=True)


def _encoded(encode: Encode, texts: Sequence[str], size: int) -> object:
    return encode(texts, size, False)


def _best(task: Task, texts: Sequence[str], call: Callable[[int], object]) -> tuple[float, int]:
    import torch

    rates: dict[int, float] = {}
    for size in task.batch_sizes:
        if rates and size >= 2 * len(texts):
            break
        gc.collect()
        try:
            if task.device == "cuda":
                call(size)
            took = [cells.timed(partial(call, size))[0] for _ in range(task.repeats)]
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
        rates[size] = len(texts) / min(took)
        # larger ones only take more memory
        if rates[size] < 0.7 * max(rates.values()):
            break
    best = max(rates, key=lambda size: rates[size])
    return rates[best], best


def ours(task: Task) -> Cells:
    """Start the engines of ours without a server: they get requests of so many texts, one behind the other."""
    from encoder_plugins import offline

    accelerator: Any = "cpu" if task.device == "cpu" else "nvidia"
    model = offline.Model(
        task.artifact,
        accelerator=accelerator,
        dtype=task.dtype,
        limits=task.limits,
        arguments=tuple(task.arguments),
    )
    return partial(_ours, task, model)


def _ours(task: Task, model: Any) -> Iterator[Cell]:
    with model:
        how = f"ours, in process, {model.engines} engine{'s' * (model.engines > 1)}"
        for length, texts in task.texts.items():
            parts = [list(texts[start : start + TEXTS]) for start in range(0, len(texts), TEXTS)]
            rate = _ours_rate(model, [data(part) for part in parts], len(texts), task)
            yield Cell(tokens=int(length), how=how, load=f"{TEXTS} texts a request", rate=rate)
        if task.documents and not task.pooled:
            rate = _ours_rate(model, [data(task.documents)], len(task.documents), task)
            yield Cell(tokens=0, how=how, load="one request", rate=rate)
            scored = [{"query": QUERY, "documents": list(task.documents)}]
            rate = _ours_rate(model, scored, len(task.documents), task)
            yield Cell(tokens=0, how=how, load="one request", rate=rate, scored=True)


def _ours_rate(model: Any, bodies: Sequence[dict[str, Any]], texts: int, task: Task) -> float:
    list(model.map(bodies))
    start = time.perf_counter()
    rounds = 0

    def repeated() -> Iterator[dict[str, Any]]:
        nonlocal rounds
        for _ in itertools.count():
            rounds += 1
            yield from bodies
            if time.perf_counter() - start > task.seconds:
                return

    for _ in model.map(repeated()):
        pass
    return rounds * texts / (time.perf_counter() - start)


def data(texts: Sequence[str]) -> dict[str, Any]:
    """Return a request's `data` for the embeddings of documents: as few bytes as the peers' answers have."""
    return {
        "texts": list(texts),
        "input_type": "document",
        "encoding": "base64",
        "embedding_dtype": "float16",
    }


SIDES: Mapping[str, Callable[[Task], Cells]] = {
    "sentence_transformers": sentence_transformers,
    "pylate": pylate,
    "ours": ours,
}


def main() -> None:
    """Measure one side."""
    start = SIDES[sys.argv[1]]
    cells.serve(lambda task: start(Task(**task)))


if __name__ == "__main__":
    main()
