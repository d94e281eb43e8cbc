"""The path of images by which vLLM replays its vision encoder as a CUDA graph, without a GPU.

All of it is vLLM's and the model's: budgets, packing, buffers that are filled up. Only the replay of a graph is the call that would have been
captured.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.interfaces import supports_encoder_cudagraph
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata, EncoderCudaGraphManager

from encoder_plugins.prep.checkpoint import EngineSettings


class Calls(EncoderCudaGraphManager):  # type: ignore[misc]
    """Calls the encoder where it would replay a graph."""

    def _capture_budget_graph(
        self, token_budget: int, path: str = "default", axis_keys: tuple[Hashable, ...] = ()
    ) -> None:
        values = self.model.prepare_encoder_cudagraph_capture_inputs(
            token_budget, self.max_batch_size, self.max_frames_per_batch, self.device, self.dtype, path, axis_keys
        ).values
        found = BudgetGraphMetadata(
            token_budget=token_budget,
            max_batch_size=self.max_batch_size,
            max_frames_per_batch=self.max_frames_per_batch,
            graph=None,
            input_buffers=values,
            output_buffer=torch.empty(0),
        )
        found.graph = _Call(self.model, found, path)
        self._get_graph_set(path)[token_budget] = found


class _Call:
    def __init__(self, model: Any, found: BudgetGraphMetadata, path: str) -> None:
        self._model, self._found, self._path = model, found, path

    def replay(self) -> None:
        values = dict(self._found.input_buffers)
        # what fills the buffer up is a sequence of its own here: attention on a CPU wants the lengths to add up
        (patches,) = {len(value) for name, value in values.items() if name.startswith("pixel_values")}
        values["cu_seqlens"] = torch.cat([values["cu_seqlens"], values["cu_seqlens"].new_tensor([patches])])
        self._found.output_buffer = self._model.encoder_cudagraph_forward(values, path=self._path)


def switched_on(model: Path, settings: EngineSettings) -> bool:
    """Return whether vLLM, started with the settings of a model folder and those of ``serving.tuning``, captures its vision encoder."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", str(model), *settings.arguments, "--cudagraph-capture-sizes", "16", "32"])
    found: bool = EngineArgs.from_cli_args(given).compilation_config.cudagraph_mm_encoder
    return found


def use(worker: Any) -> None:
    """Let the model of a worker encode images by this path only."""
    runner = worker.model_runner
    model = runner.get_model()
    assert supports_encoder_cudagraph(model)
    manager = Calls(runner.vllm_config, runner.device, runner.dtype, model)
    manager.capture(graph_pool=object())

    @torch.inference_mode()
    def embed(**given: Any) -> list[Tensor]:
        found: list[Tensor] = manager.execute(given)
        return found

    model.embed_multimodal = embed
    model.encoder_graphs = manager


def counts(worker: Any) -> tuple[int, int]:
    """Return how many images were encoded by a replay, and how many were too large for all of them, and were encoded as without graphs."""
    manager = worker.model_runner.get_model().encoder_graphs
    return manager.graph_hits, manager.graph_misses
