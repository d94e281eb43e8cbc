"""The library's side of a reranking comparison: gliner with candidates of each text, read in groups as GLinker's fourth layer does.

`python -m encoder_bench.reranking_peers` runs in the library's environment; `encoder_bench.cells` says how.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from encoder_bench import cells
from encoder_bench.linking_peers import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the library has to do.

    Attributes:
        source: The checkpoint as published.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        texts: The texts of each length, by its words.
        spans: The spans of each text that may be entities, likewise.
        candidates: The labels of each text, for each number of them.
        max_labels: Labels that are read at once.
        counted: Texts whose entities are counted, so that a side which computes something else is seen.
        batch_sizes: Those that it may choose from.
        repeats: Measurements at each batch size; the fastest counts.
        threshold: Of scores.
    """

    source: str
    device: str
    dtype: str
    texts: Mapping[str, Sequence[str]]
    spans: Mapping[str, Sequence[Sequence[Mapping[str, int]]]]
    candidates: Mapping[str, Sequence[Sequence[str]]]
    max_labels: int
    counted: int
    batch_sizes: Sequence[int]
    repeats: int
    threshold: float


def merged(groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Return the best entity of each span of a text among those of all its groups of labels; of equal ones the first."""
    best: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for found in groups:
        for entity in found:
            key = (entity["text"], entity["start"], entity["end"])
            if key not in best or entity["score"] > best[key]["score"]:
                best[key] = entity
    return list(best.values())


def library(given: Mapping[str, Any]) -> Callable[[], Iterator[Cell]]:
    """Load gliner: it gets all texts of a length at once, at its fastest batch size."""
    import torch
    from gliner import GLiNER

    task = Task(**given)
    model = GLiNER.from_pretrained(task.source, local_files_only=True, map_location=task.device)
    model = model.to(task.device).to(getattr(torch, task.dtype)).eval()

    def rerank(
        texts: Sequence[str], labels: Sequence[Sequence[str]], spans: Sequence[Any], size: int
    ) -> list[list[Mapping[str, Any]]]:
        groups = []
        for begin in range(0, len(labels[0]), task.max_labels):
            part = [list(own[begin : begin + task.max_labels]) for own in labels]
            groups.append(
                model.inference(
                    list(texts),
                    part,
                    threshold=task.threshold,
                    batch_size=size,
                    input_spans=[list(own) for own in spans],
                )
            )
        return [merged(each) for each in zip(*groups, strict=True)]

    def measure() -> Iterator[Cell]:
        for number, labels in task.candidates.items():
            for words, texts in task.texts.items():
                spans = task.spans[words]
                least = min(task.batch_sizes)
                rerank(texts[:least], labels[:least], spans[:least], least)
                took: dict[int, float] = {}
                for size in task.batch_sizes:
                    gc.collect()
                    call = partial(rerank, texts, labels, spans, size)
                    try:
                        took[size] = min(cells.timed(call)[0] for _ in range(task.repeats))
                    except torch.OutOfMemoryError:
                        torch.cuda.empty_cache()
                        break
                if not took:
                    # no batch size fits into the device's memory
                    continue
                best = min(took, key=lambda size: took[size])
                found = rerank(texts[: task.counted], labels[: task.counted], spans[: task.counted], best)
                yield Cell(
                    words=int(words),
                    labels=int(number),
                    rate=len(texts) / took[best],
                    size=best,
                    entities=sum(map(len, found)) / task.counted,
                )

    return measure


if __name__ == "__main__":
    cells.serve(library)
