"""`python -m encoder_bench memory ARTIFACT`: what batches of 16 long documents take of a GPU's memory.

One engine in this process, without graphs, for one step of as many tokens as the longest batch has. A row is the highest number of bytes that
was allocated while a batch was computed, above what was there before: linear in the tokens, or attention would be stored.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_plugins.artifact import manifest

DOCUMENTS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="of a retriever with one vector per token")
    parser.add_argument("--tokens", nargs="+", type=int, default=[2048, 4096, 8192])
    parser.add_argument("--dtype", default="bfloat16")


def main(given: argparse.Namespace) -> int:
    """Measure each length, and print a table."""
    print("| documents x tokens | MiB | bytes a token |\n|---|---|---|")
    for tokens, peak in measure(given.artifact / manifest.MODEL, given.tokens, given.dtype).items():
        print(f"| {DOCUMENTS} x {tokens} | {peak / 2**20:.0f} | {peak / DOCUMENTS / tokens:.0f} |")
    return 0


def measure(model: Path, lengths: list[int], dtype: str) -> Mapping[int, int]:
    """Return the bytes of a batch of each length."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "encoder", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM

    llm = LLM(
        str(model),
        runner="pooling",
        dtype=dtype,
        enforce_eager=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        max_model_len=max(lengths),
        max_num_batched_tokens=DOCUMENTS * max(lengths),
        max_num_seqs=DOCUMENTS,
    )
    # the first batch of all compiles kernels
    _peak(llm, min(lengths))
    return {length: _peak(llm, length) for length in lengths}


def _peak(llm: Any, length: int) -> int:
    import torch
    from vllm import PoolingParams

    # one token more than once in a document, and no two documents alike
    prompts = [
        {"prompt_token_ids": [10 + (7 * number + token) % 900 for token in range(length)]}
        for number in range(DOCUMENTS)
    ]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    answers = llm.encode(prompts, PoolingParams(task="token_embed"), pooling_task="token_embed", use_tqdm=False)
    assert {len(answer.outputs.data) for answer in answers} == {length}
    return int(torch.cuda.max_memory_allocated() - before)
