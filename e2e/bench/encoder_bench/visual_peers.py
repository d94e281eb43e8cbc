"""The library's side of a visual comparison: pages and queries by sauerkrautlm-colpali at its fastest batch size.

`python -m encoder_bench.visual_peers` runs in the library's environment; `encoder_bench.cells` says how. Pages come as files, are
decoded and processed in worker processes of PyTorch's own loader, and leave as rows of float16 in the host's memory.
"""

from __future__ import annotations

import gc
import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from encoder_bench import cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the library has to do.

    Attributes:
        plugin: Whose checkpoint it is.
        source: The checkpoint as published.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        pages: A folder with the files of pages.
        queries: The queries.
        batch_sizes: Those that it may choose from.
        workers: Numbers of processes that decode and process pages, from which it may choose; 0 is its own.
    """

    plugin: str
    source: str
    device: str
    dtype: str
    pages: str
    queries: Sequence[str]
    batch_sizes: Sequence[int]
    workers: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What the library did.

    Attributes:
        kind: `pages` or `queries`.
        load: The batch size, and how many workers.
        rate: Pages or queries a second.
        rows: Rows of the first of them.
    """

    kind: str
    load: str
    rate: float
    rows: int


def library(given: Mapping[str, Any]) -> Callable[[], Iterator[Cell]]:
    """Load the checkpoint by the library."""
    import torch
    from PIL import Image

    task = Task(**given)
    loaded = _load(task)
    model = loaded.model.to(task.device, getattr(torch, task.dtype)).eval()
    processor = loaded.processor
    files = [path.read_bytes() for path in sorted(Path(task.pages).iterdir())]

    def processed(batch: Sequence[bytes]) -> Any:
        torch.set_num_threads(1)
        return processor.process_images([Image.open(io.BytesIO(content)).convert("RGB") for content in batch])

    def rows(batch: Any) -> list[Any]:
        found = model(**{name: value.to(task.device) for name, value in batch.items()})
        return list(found.to(torch.float16).cpu())

    def of_pages(size: int, workers: int) -> list[Any]:
        threads = torch.get_num_threads()
        loading: Any = torch.utils.data.DataLoader
        loader = loading(files, batch_size=size, collate_fn=processed, num_workers=workers)
        with torch.inference_mode():
            found = [row for batch in loader for row in rows(batch)]
        torch.set_num_threads(threads)
        return found

    def of_queries(size: int, _: int) -> list[Any]:
        parts = [task.queries[start : start + size] for start in range(0, len(task.queries), size)]
        with torch.inference_mode():
            return [row for part in parts for row in rows(processor.process_queries(list(part)))]

    def measure() -> Iterator[Cell]:
        with torch.inference_mode():
            rows(processed(files[:2]))
        for kind, count, call, workers in (
            ("queries", len(task.queries), of_queries, (0,)),
            ("pages", len(files), of_pages, tuple(task.workers)),
        ):
            took: dict[tuple[int, int], float] = {}
            shape: dict[tuple[int, int], int] = {}
            for way in ((size, number) for size in task.batch_sizes for number in workers):
                gc.collect()
                try:
                    took[way], found = cells.timed(partial(call, *way))
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    continue
                shape[way] = len(found[0])
            best = min(took, key=lambda way: took[way])
            load = f"batches of {best[0]}" + (f", {best[1]} workers" if best[1] else "")
            yield Cell(kind=kind, load=load, rate=count / took[best], rows=shape[best])

    return measure


def _load(task: Task) -> Any:
    if task.plugin == "nemotron_colembed":
        # its recorder computes one page at a time
        from encoder_bench.nemotron_batches import Batches

        return Batches(Path(task.source))
    reference = importlib.import_module(f"encoder_plugins.models.{task.plugin}.reference")
    return reference.load(Path(task.source), {})


if __name__ == "__main__":
    cells.serve(library)
