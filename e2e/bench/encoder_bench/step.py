"""`python -m encoder_bench step ARTIFACT`: what a step of few GLiNER texts takes on a GPU, with its CUDA graphs and without.

The engine runs in this process, so that its graphs can be left out one by one. A text is tokens by chance with the positions of its
words and labels: a step takes as long for them, and no tokenizer is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "encoder",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# tokens of a word of English, as a fraction
TOKENS, WORDS = 4, 3

Text = tuple[list[int], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="of a GLiNER plugin, prepared")
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--texts", nargs="+", type=int, default=[1, 8, 16, 32], help="of a step")
    parser.add_argument("--repeats", type=int, default=60)


def text(random: np.random.Generator, words: int, labels: int) -> Text:
    """Return a text's tokens, and where its words and labels are: labels first, each behind its marker."""
    from encoder_plugins.families.gliner.payload import encode

    first = 2 * labels + 2
    ids = random.integers(10, 1000, first + words * TOKENS // WORDS + 1).tolist()
    return ids, encode(first + np.arange(words) * TOKENS // WORDS, 1 + 2 * np.arange(labels), 0.5)


def milliseconds(engine: Any, texts: Sequence[Text], repeats: int) -> float:
    """Return the median time from the first text given to an engine to the last answer."""
    from vllm import PoolingParams

    times = []
    for number in range(repeats + 10):
        start = time.perf_counter()
        for place, (ids, extra) in enumerate(texts):
            parameters = PoolingParams(task="token_classify", extra_kwargs=extra)
            engine.add_request(f"{number}-{place}", {"prompt_token_ids": ids}, parameters)
        while engine.has_unfinished_requests():
            engine.step()
        times.append(time.perf_counter() - start)
    # the first ones compile what is compiled when it is first used
    return 1000 * statistics.median(times[10:])


def main(given: argparse.Namespace) -> int:
    """Print a table."""
    os.environ |= ENVIRONMENT
    from vllm import LLM

    from encoder_plugins.artifact.manifest import MODEL
    from encoder_plugins.serving.tuning import BATCH_TOKENS, graph_sizes

    llm = LLM(
        str(given.artifact / MODEL),
        runner="pooling",
        dtype="bfloat16",
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        gpu_memory_utilization=0.3,
        max_num_batched_tokens=BATCH_TOKENS,
        compilation_config={"cudagraph_capture_sizes": list(graph_sizes(BATCH_TOKENS))},
    )
    models: list[Any] = []
    llm.apply_model(models.append)
    (model,) = models
    whole, head = dict(model.graphs.captured), model.pooler.graphs
    random = np.random.default_rng(0)
    print("| texts | neither graph | the encoder's | the head's | both |", "|---|---|---|---|---|", sep="\n")
    for count in given.texts:
        texts = [text(random, given.words, given.labels) for _ in range(count)]
        cells = []
        for with_whole, with_head in ((False, False), (True, False), (False, True), (True, True)):
            model.graphs.captured = whole if with_whole else {}
            model.pooler.graphs = head if with_head else None
            cells.append(f"{milliseconds(llm.llm_engine, texts, given.repeats):.2f}")
        print(f"| {count} |", " | ".join(cells), "|", flush=True)
    return 0
