"""`gpu_engine.py JOB`: an engine on a GPU, with requests in rounds; its answers and what it was, as JSON beside the job.

A process of its own: an engine gives its memory back for good only when its process ends, and ranks are started from it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_PLUGINS": "encoder",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def eighths(model: Any) -> int:
    """Return how many weight matrices are kept in 8 bits."""
    return sum(parameter.dim() == 2 and parameter.element_size() == 1 for parameter in model.parameters())


def whole_graphs(model: Any) -> list[int]:
    """Return for how many tokens whole passes were captured."""
    sizes: list[int] = model.graphs.sizes
    return sizes


def main(job: Path) -> None:
    """Start the engine that ``job`` describes, and send its requests round by round."""
    from vllm import LLM, PoolingParams

    from encoder_plugins.families.gliner.payload import encode

    given = json.loads(job.read_text(encoding="utf-8"))
    llm = LLM(
        given["model"],
        runner="pooling",
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        gpu_memory_utilization=0.3,
        **given["arguments"],
    )
    answers = []
    for places in given["rounds"]:
        sent = [given["prompts"][place] for place in places]
        outputs = llm.encode(
            [{"prompt_token_ids": ids} for ids, _, _ in sent],
            [
                # every span and label, so that there is a number for each
                PoolingParams(task="token_classify", extra_kwargs=encode(words, labels, 0.0))
                for _, words, labels in sent
            ],
            pooling_task="token_classify",
            use_tqdm=False,
        )
        answers.append([output.outputs.data.tolist() for output in outputs])
    config = llm.llm_engine.vllm_config
    about = {
        "graphs": config.compilation_config.cudagraph_mode.name,
        "graph sizes": config.compilation_config.cudagraph_capture_sizes,
        "whole graphs": llm.apply_model(whole_graphs)[0] if config.parallel_config.tensor_parallel_size == 1 else None,
        "ranks": config.parallel_config.tensor_parallel_size,
        # ranks can't be given a function
        "weights of 8 bits": llm.apply_model(eighths) if config.parallel_config.tensor_parallel_size == 1 else None,
    }
    job.with_suffix(".answers").write_text(json.dumps({"answers": answers, "about": about}), encoding="utf-8")


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    main(Path(sys.argv[1]))
