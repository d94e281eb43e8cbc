"""vLLM's CPU platform, where the engine's process is forked from the server instead of started anew.

On a CPU vLLM starts every process anew, because its worker processes bind their threads to cores while they import torch. An engine without
worker processes has nothing to bind, and would only import vLLM a second time, which takes most of a start. On a GPU vLLM forks.
The server has computed nothing when it forks, so that no thread of OpenMP's is lost.
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
        """Let the engine's process be forked, unless it starts workers (tensor parallelism, or an executor of the user's)."""
        super().check_and_update_config(vllm_config)
        if vllm_config.parallel_config.distributed_executor_backend == "uni":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
