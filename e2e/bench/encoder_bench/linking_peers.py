"""The library's side of a linking comparison: gliner's bi-encoder with the vectors of labels computed before.

`python -m encoder_bench.linking_peers` runs in the library's environment; `encoder_bench.cells` says how.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from encoder_bench import cells

# labels that are encoded together
LABELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the library has to do.

    Attributes:
        source: The checkpoint as published.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        texts: The texts of each length, by its words.
        labels: The labels of each number of them.
        counted: Texts whose entities are counted, so that a side which computes something else is seen.
        batch_sizes: Those that it may choose from.
        repeats: Measurements at each batch size; the fastest counts.
        threshold: Of scores.
    """

    source: str
    device: str
    dtype: str
    texts: Mapping[str, Sequence[str]]
    labels: Mapping[str, Sequence[str]]
    counted: int
    batch_sizes: Sequence[int]
    repeats: int
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What the library did with texts of one length and so many labels.

    Attributes:
        words: Of each text.
        labels: Of each text.
        rate: Texts a second.
        size: The fastest batch size.
        entities: Entities of a text, on average.
        label_rate: Labels encoded a second; 0 for a model that reads them with each text.
    """

    words: int
    labels: int
    rate: float
    size: int
    entities: float
    label_rate: float = 0.0


def library(given: Mapping[str, Any]) -> Callable[[], Iterator[Cell]]:
    """Load gliner: it gets all texts of a length at once, sorted by length, at its fastest batch size."""
    import torch
    from gliner import GLiNER

    task = Task(**given)
    model = GLiNER.from_pretrained(task.source, local_files_only=True, map_location=task.device)
    model = model.to(task.device).to(getattr(torch, task.dtype)).eval()

    def predict(texts: Sequence[str], vectors: Any, labels: Sequence[str], size: int) -> list[Any]:
        found: list[Any] = model.batch_predict_with_embeds(
            list(texts), vectors, list(labels), threshold=task.threshold, batch_size=size
        )
        return found

    def encoded(labels: Sequence[str]) -> Any:
        # its own `encode_labels` pads each label to the longest text that the tokenizer names, which may be 10^30 tokens
        tokenizer = model.data_processor.labels_tokenizer
        found = []
        with torch.inference_mode():
            for start in range(0, len(labels), LABELS):
                part = tokenizer(list(labels[start : start + LABELS]), return_tensors="pt", padding=True)
                found.append(model.model.token_rep_layer.encode_labels(**part.to(task.device)))
        return torch.cat(found)

    def measure() -> Iterator[Cell]:
        for number, labels in task.labels.items():
            encode = partial(encoded, labels)
            encode()
            took_labels, vectors = cells.timed(encode)
            for words, texts in task.texts.items():
                ordered = sorted(texts, key=len)
                with contextlib.suppress(torch.OutOfMemoryError):
                    predict(ordered[: min(task.batch_sizes)], vectors, labels, min(task.batch_sizes))
                took: dict[int, float] = {}
                for size in task.batch_sizes:
                    gc.collect()
                    call = partial(predict, ordered, vectors, labels, size)
                    try:
                        took[size] = min(cells.timed(call)[0] for _ in range(task.repeats))
                    except torch.OutOfMemoryError:
                        torch.cuda.empty_cache()
                        break
                if not took:
                    # no batch size fits into the device's memory
                    continue
                best = min(took, key=lambda size: took[size])
                found = predict(texts[: task.counted], vectors, labels, best)
                yield Cell(
                    words=int(words),
                    labels=int(number),
                    rate=len(texts) / took[best],
                    size=best,
                    entities=sum(map(len, found)) / task.counted,
                    label_rate=len(labels) / took_labels,
                )

    return measure


if __name__ == "__main__":
    cells.serve(library)
