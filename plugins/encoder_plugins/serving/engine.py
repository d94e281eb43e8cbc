"""vLLM's asynchronous engine as processors see it: one engine request for each prompt, aborted when the caller is cancelled.

With ``serving.io_processor`` and ``offline.worker``, the only modules that know vLLM's classes for requests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from vllm import PoolingParams
from vllm.config import VllmConfig
from vllm.engine.protocol import EngineClient
from vllm.inputs import TokensPrompt
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest

from encoder_plugins import catalog
from encoder_plugins.artifact import label_sets
from encoder_plugins.plugin import Plugin, Task, resolve
from encoder_plugins.serving import steps
from encoder_plugins.serving.processor import Part, Processor, Prompt, ServingContext
from encoder_plugins.serving.settings import Settings
from encoder_plugins.serving.window import Window

# of the time for which a long request may be overtaken; a slow CPU reads about this many
TOKENS_PER_MILLISECOND = 10

# microseconds of work up to which a thread costs more than it gives: below, the event loop does it itself
INLINE_MICROSECONDS = 1_000

ResultT = TypeVar("ResultT")


class OwnParams(PoolingParams):  # type: ignore[misc]
    """The parameters of one prompt, made for it alone: vLLM's deep copy of them is of no use, and not cheap."""

    def clone(self) -> PoolingParams:
        """Return itself."""
        return self


def pooling_params(prompt: Prompt, task: Task, more: Mapping[str, Any] | None = None) -> PoolingParams:
    """Return how vLLM is to pool ``prompt``, with ``more`` parameters than its own."""
    extra = {**(prompt.parameters or {}), **(more or {})} or None
    return OwnParams(task=task, use_activation=prompt.use_activation, extra_kwargs=extra)


def unprocessed(prompt: Prompt) -> TokensPrompt:
    """Return a prompt as vLLM's renderer takes it: an image still has to become pixels of the model's size, and its tokens."""
    if prompt.image is None:
        return TokensPrompt(prompt_token_ids=prompt.token_ids)
    return TokensPrompt(prompt_token_ids=prompt.token_ids, multi_modal_data={"image": prompt.image})


def priority(tokens: int) -> int:
    """Return the priority of a request that comes now: the engine takes the lowest first.

    Every request has a moment, later the longer it is: a short one overtakes what a long one still has waiting, and a long
    one is overtaken for a bounded time only. The clock is the machine's, so that several API servers agree.
    """
    return int(time.monotonic() * 1000) + tokens // TOKENS_PER_MILLISECOND


def context_of(config: VllmConfig, settings: Settings, adapters: frozenset[str] = frozenset()) -> ServingContext:
    """Return what a processor is built from."""
    model = config.model_config
    names = model.served_model_name or model.model
    return ServingContext(
        model=Path(model.model),
        max_model_len=model.max_model_len,
        names=(names,) if isinstance(names, str) else tuple(names),
        limits=settings.limits,
        dtype=str(model.dtype).removeprefix("torch."),
        digest=settings.digest,
        # without a digest, what lies beside the model's folder is nobody's
        label_sets=Path(model.model).parent / label_sets.FOLDER if settings.digest else None,
        adapters=adapters,
        media_hosts=settings.media_hosts,
    )


def build(plugin: Plugin, context: ServingContext) -> Processor[Any]:
    """Build the processor of ``plugin``."""
    processor: Processor[Any] = resolve(plugin.processor)(context)
    return processor


def build_from(
    config: VllmConfig, settings: Settings, adapters: frozenset[str] = frozenset()
) -> tuple[Plugin, Processor[Any]]:
    """Return the plugin that ``settings`` name, and its processor for the engine of ``config``."""
    plugin = catalog.get(settings.plugin)
    return plugin, build(plugin, context_of(config, settings, adapters))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A prompt that the engine can have.

    Attributes:
        prompt: The prompt.
        id: What vLLM calls it.
        params: How to pool it.
        options: Of vLLM's `encode`.
    """

    prompt: Prompt
    id: str
    params: PoolingParams
    options: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Sent:
    """What the engine has of one call.

    Attributes:
        adapter: vLLM's request for the adapter; None for none.
        prefix: Of the ids; a client cannot guess another's, and vLLM distinguishes requests of one id only by a suffix of its own.
        ids: Of the prompts.
        tokens: Of all of them.
    """

    adapter: LoRARequest | None
    prefix: str = field(default_factory=lambda: secrets.token_hex(8))
    ids: list[str] = field(default_factory=list)
    tokens: int = 0


class AsyncEngine:
    """The engine of a server. Its methods are used by many requests at once, in one event loop."""

    concurrent = True

    def __init__(
        self,
        client: EngineClient,
        plugin: Plugin,
        threads: Executor,
        *,
        adapters: Mapping[str, LoRARequest] | None = None,
        count_tokens: Callable[[int], None] = lambda _: None,
        trace_headers: Callable[[], Mapping[str, str] | None] = lambda: None,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """Use a running engine.

        Args:
            client: The engine.
            plugin: What it serves.
            threads: Where work that takes long is done.
            adapters: vLLM's requests for the adapters that were loaded, by name.
            count_tokens: Called with the number of tokens that the engine is given.
            trace_headers: Called for each request: its position in a trace, for the engine's own spans; None outside of one.
            is_alone: Returns whether the engine has no other request.
        """
        self._client = client
        self._task = plugin.task
        self._threads = threads
        self._adapters = adapters or {}
        self._count_tokens = count_tokens
        self._trace_headers = trace_headers
        config = client.vllm_config
        self._step_tokens: int = config.scheduler_config.max_num_batched_tokens
        self._is_alone = is_alone
        self._prioritised = config.scheduler_config.policy == "priority"
        self._short_tokens = steps.LONG_TOKENS[config.device_config.device_type]

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[Tensor]:
        """Return one pooled tensor for each prompt, in order. Cancelling it aborts all of them in the engine."""
        return await self.encode_parts([Part(make=lambda: prompts, size=0)], lora=lora)

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[Tensor]:
        """Return one pooled tensor for each prompt of all parts, in order; the engine computes some while the next are made."""
        sent = _Sent(adapter=None if lora is None else self._adapters[lora])
        try:
            ready = await self._begun(parts[0], sent, complete=len(parts) == 1)
            if len(parts) == len(ready) == 1:
                return [await self._encode(ready[0])]
            window, tasks = Window(self._window_tokens), []
            async with asyncio.TaskGroup() as group:
                for number, part in enumerate(parts, 1):
                    if number > 1:
                        ready = await self._begun(part, sent, complete=number == len(parts))
                    for one in ready:
                        await window.enter(one.prompt.tokens)
                        tasks.append(group.create_task(self._encode(one)))
                        tasks[-1].add_done_callback(partial(window.leave, one.prompt.tokens))
            return [task.result() for task in tasks]
        except BaseExceptionGroup as group_error:
            await self._client.abort(sent.ids)
            raise group_error.exceptions[0] from None
        except BaseException:
            # vLLM forgets a request by itself, unless it is cancelled while it hands it to the engine
            await self._client.abort(sent.ids)
            raise

    def _window_tokens(self) -> int:
        # so that a step can be full while the one before it is computed: all of a step is one request's where there is no other
        return 2 * (self._step_tokens if self._is_alone() else min(self._step_tokens, self._short_tokens))

    async def _begun(self, part: Part, sent: _Sent, *, complete: bool) -> list[_Ready]:
        """Return the prompts of a part, after which the request is ``complete`` or not."""
        prompts = await self.compute(part.make, size=part.size)
        tokens = sum(prompt.tokens for prompt in prompts)
        self._count_tokens(tokens)
        sent.tokens += tokens
        ids = [f"{sent.prefix}-{number}" for number in range(len(sent.ids), len(sent.ids) + len(prompts))]
        sent.ids += ids
        rank = priority(sent.tokens) if self._prioritised else 0
        options = {"lora_request": sent.adapter, "priority": rank, "trace_headers": self._trace_headers()}
        length = steps.parameters(sent.tokens, complete=complete, most=self._short_tokens)
        return [
            _Ready(prompt=prompt, id=id_, params=pooling_params(prompt, self._task, length), options=options)
            for prompt, id_ in zip(prompts, ids, strict=True)
        ]

    async def _encode(self, ready: _Ready) -> Tensor:
        prompt = ready.prompt
        pooled: Tensor | None = None
        given = tokens_input(prompt.token_ids)
        if prompt.image is not None:
            # in a thread of vLLM's
            (given,) = await self._client.renderer.render_cmpl_async([unprocessed(prompt)])
        async for output in self._client.encode(given, ready.params, ready.id, **ready.options):
            pooled = output.outputs.data
        assert pooled is not None
        return pooled

    async def compute(
        self, function: Callable[..., ResultT], *arguments: object, size: int, threads: Executor | None = None
    ) -> ResultT:
        """Call ``function(*arguments)``, inline where ``size`` says that it is short, else in a thread, one of ``threads``."""
        if size <= INLINE_MICROSECONDS:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, function, *arguments)
