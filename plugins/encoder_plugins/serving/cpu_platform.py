"""vLLM's CPU platform, where the engine's process is forked from the server instead of started anew.

On a CPU vLLM gives each engine a worker process, and starts every process anew, because workers bind their threads to cores while they import
torch. `serve` has them bind nothing, so that an engine computes in its own process; starting that anew would only import vLLM a second time, which
takes most of a start. On a GPU vLLM forks.

A process that has computed with several threads must not be forked: the child would wait for OpenMP's threads, which it does not have. A server of
images does so before it starts its engine, to learn how many tokens an image has; one of texts only reads configurations.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class ForkingCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """The platform of a server of ``encoder-plugins serve``; ``encoder_plugins.platform`` decides where it is used."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Let an engine of texts and one rank compute in its own process, forked; the others start as vLLM starts them."""
        parallel = vllm_config.parallel_config
        alone = parallel.distributed_executor_backend == "uni" and not vllm_config.model_config.is_multimodal_model
        super().check_and_update_config(vllm_config)
        if alone:
            parallel.distributed_executor_backend = "uni"
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
