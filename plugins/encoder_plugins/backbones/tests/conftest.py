"""Encoders of ours without an engine: vLLM's layers in one process, and a forward pass over packed sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from encoder_plugins.tests.free_port import free_port


@pytest.fixture(scope="session")
def world() -> Iterator[None]:
    """A group of one process, as vLLM's layers want one."""
    from vllm.distributed import cleanup_dist_env_and_memory

    port = free_port()
    join_group(1, 0, port)
    yield
    cleanup_dist_env_and_memory()


def join_group(ranks: int, rank: int, port: int) -> None:
    """Become one of ``ranks`` processes that share the layers."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
        ensure_model_parallel_initialized(ranks, 1)


@dataclass
class Encoder:
    """An encoder of ours, with the configuration that it was built in."""

    module: torch.nn.Module
    vllm_config: Any

    def load(self, weights: dict[str, torch.Tensor], layout: Any) -> set[str]:
        """Load weights as vLLM does."""
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        from encoder_plugins.backbones import weight_loading

        loaded = weight_loading.load(self.module, weights.items(), layout)
        process_weights_after_loading(self.module, self.vllm_config.model_config, torch.device("cpu"))
        return loaded

    @torch.inference_mode()
    def __call__(self, texts: Sequence[torch.Tensor], padding: int = 0, separated: Any = None) -> list[torch.Tensor]:
        """Return `[tokens, hidden]` of each of the packed ``texts``, with rows of padding behind, as a CUDA graph has them.

        With ``separated`` (a ``Texts``), those are the texts of requests, and each is one or more sequences.
        """
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backend import CommonAttentionMetadata

        lengths = [len(text) for text in texts]
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        zeros = torch.zeros(padding, dtype=torch.int64)
        ids = torch.cat([*texts, zeros + 1])
        positions = torch.cat([*(torch.arange(length) for length in lengths), zeros])
        total = sum(lengths)
        layers = self.vllm_config.compilation_config.static_forward_context
        common = CommonAttentionMetadata(
            query_start_loc=offsets,
            query_start_loc_cpu=offsets,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_reqs=len(lengths),
            num_actual_tokens=total,
            max_query_len=max(lengths),
            max_seq_len=max(lengths),
            block_table_tensor=torch.zeros(len(lengths), 1, dtype=torch.int32),
            # vLLM's CPU attention fills it, but for the padding
            slot_mapping=torch.full((total + padding,), -1, dtype=torch.int64),
            causal=False,
            positions=positions[:total],
        )
        with set_current_vllm_config(self.vllm_config):
            metadata = {name: self._builder(layer, name).build(0, common) for name, layer in layers.items()}
            with set_forward_context(metadata, self.vllm_config, num_tokens=total, slot_mapping={}):
                if separated is not None:
                    from encoder_plugins.backbones.mark_channel import TextSeparator

                    TextSeparator(self.module, self.vllm_config)(separated, positions)
                hidden = self.module(ids, positions)
        assert hidden.shape[0] == total + padding
        return list(hidden[:total].split(lengths))

    def _builder(self, layer: Any, name: str) -> Any:
        from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec

        spec = EncoderOnlyAttentionSpec(
            block_size=32, num_kv_heads=layer.num_kv_heads, head_size=layer.head_size, dtype=torch.float32
        )
        return layer.get_attn_backend().get_builder_cls()(spec, [name], self.vllm_config, torch.device("cpu"))


class ModelConfig:
    """What our encoders and vLLM's layers read of vLLM's; everything else is not set."""

    def __init__(self, hf_config: Any, dtype: torch.dtype) -> None:
        self.hf_config = hf_config
        self.dtype = dtype

    def __getattr__(self, name: str) -> None:
        return None


@pytest.fixture(params=[False, True], ids=["vLLM's attention", "our attention"])
def our_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether layers have our kernel where it is the faster one on a GPU."""
    from encoder_plugins.backbones import plain_attention

    ours: bool = request.param
    monkeypatch.setattr(plain_attention, "current_platform", SimpleNamespace(is_cuda=lambda: ours))
    return ours


Build = Callable[..., Encoder]


@pytest.fixture
def build(world: None) -> Build:
    """Gives ``make``."""
    return make


def make(encoder_class: type[torch.nn.Module], config: Any, dtype: torch.dtype = torch.float32) -> Encoder:
    """Build an encoder for a configuration of transformers'."""
    from vllm.config import set_current_vllm_config

    vllm_config = configuration(config, dtype)
    with set_current_vllm_config(vllm_config), default_dtype(dtype):
        return Encoder(encoder_class(vllm_config=vllm_config, prefix="encoder"), vllm_config)


def configuration(config: Any, dtype: torch.dtype) -> Any:
    """Return vLLM's configuration of an engine that compiles nothing."""
    from vllm.config import CompilationConfig, VllmConfig

    vllm_config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    vllm_config.model_config = ModelConfig(config, dtype)
    return vllm_config


@pytest.fixture
def vllm_config(world: None) -> Any:
    """Such a configuration, of no model."""
    return configuration(None, torch.float32)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors of this type, as vLLM does while it builds a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def randomize(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Draw weights that show an error: no norm is 1, no bias 0, attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.1, generator=generator)
            else:
                spread = (
                    1.0 if "mbedding" in name or "relative" in name or "shared" in name else parameter.shape[1] ** -0.5
                )
                parameter.normal_(0.0, spread, generator=generator)
    return model.eval()


def texts(count: int, longest: int, vocabulary: int, seed: int = 0) -> list[torch.Tensor]:
    """Return ``count`` token sequences of 1 to ``longest`` tokens, in no order; both ends are among them."""
    generator = torch.Generator().manual_seed(seed + count)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    lengths[0] = longest
    lengths[-1] = 1 if count > 1 else longest
    return [torch.randint(1, vocabulary, (length,), generator=generator) for length in lengths]


@torch.inference_mode()
def worst(encoder: Encoder, reference: torch.nn.Module, batch: Sequence[torch.Tensor], padding: int = 0) -> float:
    """Return the largest difference between ours on a packed batch and transformers' text by text."""
    largest = 0.0
    for rows, ids in zip(encoder(batch, padding), batch, strict=True):
        expected = reference(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).last_hidden_state[0]
        # a comparison with NaN is false, and would pass
        largest = max(largest, float((rows - expected).abs().nan_to_num(nan=torch.inf).max()))
    return largest


@pytest.fixture
def compare() -> Callable[..., float]:
    """Gives ``worst``."""
    return worst


@pytest.fixture
def draw() -> Callable[..., torch.nn.Module]:
    """Gives ``randomize``."""
    return randomize


@pytest.fixture
def batches() -> Callable[..., list[torch.Tensor]]:
    """Gives ``texts``."""
    return texts
