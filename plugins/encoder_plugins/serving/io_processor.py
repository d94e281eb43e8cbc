"""A plugin's processor as an IO processor of vLLM: for plain ``vllm serve --io-processor-plugin encoder`` and ``LLM.encode``.

``encoder-plugins serve`` and ``offline.Model`` do without it. vLLM's interface has one round of prompts for each request, calls
``parse_data`` and ``pre_process`` on its event loop, and names a request by a string that clients choose; so the processor's
coroutine is advanced by hand, and waits for its outputs in a bounded store under the identity of that string.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.renderers import BaseRenderer
from vllm.tasks import PoolingTask

from encoder_plugins import catalog, compatibility
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import InvalidRequest, PrepareError
from encoder_plugins.inputs import body as bodies
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving import engine, limits
from encoder_plugins.serving.processor import Prompt, Response
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance
from encoder_plugins.serving.settings import Settings

# a request that is aborted never comes back for its coroutine
MOST_WAITING = 4096
LONGEST_WAIT_SECONDS = 900.0

# vLLM takes no request without a prompt; a pooler knows such a one from vLLM's own profile runs
_NOTHING = Prompt(token_ids=[0])

# from pre_process to merge_pooling_params: vLLM calls both at once, in the same context
_pooling: ContextVar[deque[PoolingParams]] = ContextVar("pooling")


class EachItsOwn(list[PoolingParams]):
    """The parameters of each prompt of a request, in the one place where vLLM expects those of all of them.

    vLLM reads ``task`` there, calls ``verify``, and gives a sequence's items to the prompts.
    """

    @property
    def task(self) -> PoolingTask | None:
        """The task, which all have in common."""
        return self[0].task

    def verify(self, model_config: ModelConfig) -> None:
        """Check each of them, and complete it, as vLLM would."""
        for params in self:
            params.verify(model_config)


class Waiting:
    """The coroutines of requests that the engine has, the oldest first."""

    def __init__(self, *, most: int = MOST_WAITING, seconds: float = LONGEST_WAIT_SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[int, tuple[float, object, Running | Response]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, request_id: object, running: Running | Response) -> None:
        """Keep ``running`` for the request whose id is this very object, which lives as long as the entry."""
        now = time.monotonic()
        with self._lock:
            while self._kept:
                born = next(iter(self._kept.values()))[0]
                if len(self._kept) < self._most and now - born < self._seconds:
                    break
                _close(self._kept.popitem(last=False)[1][2])
            if (before := self._kept.pop(id(request_id), None)) is not None:
                _close(before[2])
            self._kept[id(request_id)] = (now, request_id, running)

    def take(self, request_id: object) -> Running | Response | None:
        """Return what was kept, and forget it; None if it was dropped."""
        with self._lock:
            found = self._kept.pop(id(request_id), None)
        return None if found is None else found[2]

    def __len__(self) -> int:
        return len(self._kept)


def _close(running: Running | Response) -> None:
    if not isinstance(running, Response):
        running.close()


class EncoderIOProcessor(IOProcessor[Any, Any]):  # type: ignore[misc]
    """Advances the processor of the plugin that the artifact, or ``--additional-config``, names."""

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        settings = settings_of(vllm_config)
        if compatibility.disabled([settings.plugin], os.environ):
            raise ValueError(f"the plugin {settings.plugin} is disabled by {compatibility.SWITCH}")
        self._plugin, self._processor = engine.build_from(vllm_config, settings)
        self._waiting = Waiting()

    def parse_data(self, data: object) -> Any:
        """Return the checked request (vLLM's first call)."""
        try:
            return self._processor.parse(POOLING, bodies.encode(data))
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.param) from None

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: object) -> Sequence[PromptType]:
        """Return the prompts, and keep the coroutine that waits for their outputs (vLLM's second call)."""
        running: Running = self._processor.run(prompt, ENGINE)
        try:
            found = advance(running)
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.param) from None
        prompts = found.prompts if isinstance(found, Round) else [_NOTHING]
        self._waiting.put(request_id, running if isinstance(found, Round) else found)
        _pooling.set(deque(engine.pooling_params(each, self._plugin.task) for each in prompts))
        return [engine.unprocessed(each) for each in prompts]

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Return the parameters of all prompts of a request (vLLM's third call).

        In process vLLM passes ``params`` of its own and calls once for each prompt, in order.
        """
        pooling = _pooling.get()
        return EachItsOwn(pooling) if params is None else pooling.popleft()

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: object
    ) -> Any:
        """Return the answer: the ``data`` of a JSON response, or a binary body in base64 (vLLM's last call, in a thread)."""
        waiting = self._waiting.take(request_id)
        if waiting is None:
            raise RuntimeError("the request was dropped before its answer was ready: too many at once, or too old")
        try:
            found = waiting if isinstance(waiting, Response) else advance(waiting, _tensors(model_output))
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.param) from None
        if isinstance(found, Round):
            _close(waiting)
            raise RuntimeError(f"{self._plugin.name} encodes in several rounds: serve it with `encoder-plugins serve`")
        if found.media_type != "application/json":
            return base64.b64encode(found.body).decode("ascii")
        return msgspec.json.decode(found.body)["data"]


def _tensors(outputs: Sequence[PoolingRequestOutput]) -> list[Any]:
    return [output.outputs.data for output in outputs]


def settings_of(config: VllmConfig) -> Settings:
    """Return what is served: by ``--additional-config '{"encoder": {"plugin": ..., "limits": {...}}}'``, or by the artifact.

    Raises:
        ValueError: Neither names a plugin.
    """
    additional = config.additional_config
    given: Mapping[str, Any] = additional.get("encoder", {}) if isinstance(additional, dict) else {}
    name, digest = given.get("plugin"), ""
    if name is None:
        try:
            read = manifest.read(Path(config.model_config.model).parent)
        except PrepareError:
            raise ValueError(
                'the IO processor "encoder" needs the model folder of an artifact, or'
                ' --additional-config \'{"encoder": {"plugin": "..."}}\''
            ) from None
        name, digest = read.plugin, read.digest
    plugin = catalog.get(name)
    assignments = [f"{limit}={value}" for limit, value in given.get("limits", {}).items()]
    return Settings(plugin=name, limits=limits.parse(plugin, assignments), digest=digest)
