"""The library's side of a GLiNER2 comparison, and what every side gets and counts.

`python -m encoder_bench.gliner2_peers` runs in the library's environment; `encoder_bench.cells` says how.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from encoder_bench import cells

ENTITIES = {"entities": ["person", "company", "city", "date", "product"]}
RELATIONS = {"relations": ["works for", "born in", "located in"]}
RECORDS = {
    "structures": {
        "order": {
            "fields": [
                {"name": "customer", "dtype": "str"},
                {"name": "articles", "dtype": "list"},
                {"name": "amount", "dtype": "str"},
                {"name": "date", "dtype": "str"},
                {"name": "place", "dtype": "str"},
                {"name": "state", "dtype": "str", "choices": ["open", "paid", "sent"]},
            ]
        }
    }
}
CLASSES = {"classifications": [{"task": "topic", "labels": ["sport", "money", "travel", "law"]}]}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "5 entity types": ENTITIES,
    "3 relations": RELATIONS,
    "records of 6 fields": RECORDS,
    "all of these, and 4 classes": {**ENTITIES, **RELATIONS, **RECORDS, **CLASSES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the library has to do.

    Attributes:
        source: The checkpoint as published.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        texts: The texts of each length, by its words.
        counted: Texts whose values are counted, so that a side which computes something else is seen.
        batch_sizes: Those that it may choose from.
        repeats: Measurements at each batch size; the fastest counts.
    """

    source: str
    device: str
    dtype: str
    texts: Mapping[str, Sequence[str]]
    counted: int
    batch_sizes: Sequence[int]
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a side did with texts of one length and one schema.

    Attributes:
        words: Of each text.
        schema: Its name.
        rate: Texts a second.
        size: The fastest batch size.
        values: Values with a place in their text that were found, a text.
    """

    words: int
    schema: str
    rate: float
    size: int
    values: float


def values(answer: Any) -> int:
    """Count the values of an answer that say where in the text they are, in the library's shape and in ours."""
    if isinstance(answer, Mapping):
        return int("start" in answer and "end" in answer) + sum(map(values, answer.values()))
    return sum(map(values, answer)) if isinstance(answer, list | tuple) else 0


def library(given: Mapping[str, Any]) -> Callable[[], Iterator[Cell]]:
    """Load gliner2: it gets all texts of a length at once, sorted by length, at its fastest batch size."""
    import torch
    from gliner2 import GLiNER2
    from gliner2.inference.schema import Schema

    task = Task(**given)
    model = GLiNER2.from_pretrained(task.source, local_files_only=True, map_location=task.device)
    model = model.to(task.device).to(getattr(torch, task.dtype)).eval()

    def extract(texts: Sequence[str], schema: Mapping[str, Any], size: int) -> list[Any]:
        with torch.inference_mode():
            found: list[Any] = model.batch_extract(
                list(texts), Schema.from_dict(schema), batch_size=size, include_confidence=True, include_spans=True
            )
        return found

    def measure() -> Iterator[Cell]:
        for words, texts in task.texts.items():
            ordered = sorted(texts, key=len)
            for name, schema in SCHEMAS.items():
                extract(ordered[-min(task.batch_sizes) :], schema, min(task.batch_sizes))
                took = {}
                for size in task.batch_sizes:
                    gc.collect()
                    call = partial(extract, ordered, schema, size)
                    took[size] = min(cells.timed(call)[0] for _ in range(task.repeats))
                best = min(took, key=lambda size: took[size])
                found = extract(texts[: task.counted], schema, best)
                yield Cell(
                    words=int(words),
                    schema=name,
                    rate=len(texts) / took[best],
                    size=best,
                    values=values(found) / task.counted,
                )

    return measure


if __name__ == "__main__":
    cells.serve(library)
