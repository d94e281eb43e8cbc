"""What all plugins' IO processors share, and the choice of the plugin's own one.

A request takes one of two ways in. Behind the middleware its body was parsed, checked and tokenised in a thread
before vLLM sees it, and what vLLM passes here is a ticket for the result: vLLM would do all that on its event loop,
where one client's megabyte keeps every other client, and the liveness probe, waiting. Without the middleware
(``LLM.encode`` in process) the data itself arrives.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.renderers import BaseRenderer
from vllm.tasks import PoolingTask

from encoder_plugins import catalog, compatibility
from encoder_plugins.errors import InvalidRequest, UnknownModel
from encoder_plugins.plugin import resolve
from encoder_plugins.serving.http import body as request
from encoder_plugins.serving.limits import Settings

D = TypeVar("D", bound=request.Data)
P = TypeVar("P")

TICKET = "ticket"
# of the time for which a long request may be overtaken; a slow CPU reads about as many
TOKENS_PER_MILLISECOND = 10

# from vLLM's second call to its third: it makes both at once, in the same context
_pooling: ContextVar[PoolingParams | deque[PoolingParams]] = ContextVar("pooling")


def create(vllm_config: VllmConfig, renderer: BaseRenderer) -> EncoderProcessor[Any, Any]:
    """Build the IO processor of the plugin that ``--additional-config`` names."""
    settings = settings_of(vllm_config)
    if compatibility.disabled([settings.plugin], os.environ):
        raise ValueError(f"the plugin {settings.plugin} is switched off by {compatibility.SWITCH}")
    processor: EncoderProcessor[Any, Any] = resolve(catalog.get(settings.plugin).processor)(vllm_config, renderer)
    return processor


def settings_of(vllm_config: VllmConfig) -> Settings:
    """Return what ``serve`` put under ``encoder`` in the additional configuration."""
    additional = vllm_config.additional_config
    if not isinstance(additional, dict) or "encoder" not in additional:
        raise ValueError('the IO processor "encoder" needs --additional-config \'{"encoder": {"plugin": "..."}}\'')
    return Settings.model_validate(additional["encoder"])


class Admitted(NamedTuple):
    """A request that may go on.

    Attributes:
        body: What vLLM gets in place of the request's own body.
        tokens: Of all its prompts.
    """

    body: dict[str, Any]
    tokens: int


class Shelf(Generic[P]):
    """Keeps what one step of a request leaves for a later one: a few entries, for a while.

    A request that is aborted never comes back for its entry, so that the oldest ones are dropped.
    """

    def __init__(self, *, entries: int = 4096, seconds: float = 900.0) -> None:
        self._entries = entries
        self._seconds = seconds
        self._kept: OrderedDict[object, tuple[float, object, P]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: object, value: P, *, owner: object = None) -> None:
        """Keep ``value``; ``owner`` lives as long as the entry, so that its ``id`` can be the key."""
        now = time.monotonic()
        with self._lock:
            while self._kept:
                born = next(iter(self._kept.values()))[0]
                if len(self._kept) < self._entries and now - born < self._seconds:
                    break
                self._kept.popitem(last=False)
            self._kept[key] = (now, owner, value)
            self._kept.move_to_end(key)

    def take(self, key: object) -> P | None:
        """Return the value of ``key`` and forget it; None if there is none (any more)."""
        with self._lock:
            found = self._kept.pop(key, None)
        return None if found is None else found[2]

    def __len__(self) -> int:
        return len(self._kept)


class OwnParams(PoolingParams):  # type: ignore[misc]
    """The parameters of one prompt, made for it alone: vLLM's deep copy of them would be of no use, and is not cheap."""

    def clone(self) -> PoolingParams:
        """Return itself."""
        return self


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


class EncoderProcessor(IOProcessor[P, dict[str, Any]], ABC, Generic[D, P]):  # type: ignore[misc]
    """The verbs that every plugin has: prepare a request, name its prompts, answer from what was pooled.

    ``D`` is the plugin's request data, ``P`` what it is turned into: immutable, and holding all that the answer needs.
    """

    data_type: ClassVar[type[request.Data]]

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        self.settings = settings_of(vllm_config)
        served = vllm_config.model_config.served_model_name or vllm_config.model_config.model
        self.names = (served,) if isinstance(served, str) else tuple(served)
        self._ordered = vllm_config.scheduler_config.policy == "priority"
        self._admitted: Shelf[P] = Shelf()
        # keyed by the identity of vLLM's request id, not by its text: clients may choose that, and choose the same
        self._at_work: Shelf[P] = Shelf()

    @abstractmethod
    def prepare(self, data: D) -> P:
        """Check ``data`` against model and limits, and tokenise it. Runs in several threads at once.

        Raises:
            InvalidRequest: It can't be answered.
        """

    @abstractmethod
    def prompts(self, prepared: P) -> Sequence[PromptType]:
        """Return the engine's prompts, in the order in which ``answer`` gets their outputs."""

    @abstractmethod
    def pooling_params(self, prepared: P) -> PoolingParams | Sequence[PoolingParams]:
        """Return how the engine is to pool: once for all prompts, or once for each of them, in their order."""

    @abstractmethod
    def answer(self, prepared: P, outputs: Sequence[PoolingRequestOutput]) -> dict[str, Any]:
        """Return the ``data`` of the response.

        Raises:
            InvalidRequest: It is more than one answer may hold.
        """

    def admit(self, body: bytes) -> Admitted:
        """Parse, check and prepare a request's body; return the small body that vLLM gets in its place, and its tokens.

        Raises:
            InvalidRequest: It can't be answered.
            UnknownModel: It asks for a model that is not served here.
        """
        envelope = request.parse_body(body, self.data_type)
        model = self.names[0] if envelope.model is None else envelope.model
        if model not in self.names:
            raise UnknownModel(f"no model {model[:200]!r} here; there is {self.names[0]!r}", param="model")
        ticket = secrets.token_hex(16)
        prepared = self.prepare(envelope.data)  # type: ignore[arg-type]
        self._admitted.put(ticket, prepared)
        tokens = sum(
            len(prompt["prompt_token_ids"]) for prompt in self.prompts(prepared) if "prompt_token_ids" in prompt
        )
        return Admitted({"model": model, "data": {TICKET: ticket}, **self._order(tokens)}, tokens)

    def _order(self, tokens: int) -> dict[str, int]:
        """Return which requests it comes before: those that could wait longer, if the engine asks at all.

        Every request has a moment, later the longer it is, and the engine takes the earliest: a short one overtakes what
        a long one still has waiting, and a long one is overtaken for a bounded time only. The clock is the machine's.
        """
        if not self._ordered:
            return {}
        return {"priority": int(time.monotonic() * 1000) + tokens // TOKENS_PER_MILLISECOND}

    def discard(self, admitted: dict[str, Any]) -> None:
        """Forget an admitted request that vLLM never asked for."""
        self._admitted.take(admitted["data"][TICKET])

    def parse_data(self, data: object) -> P:
        """Return the prepared request behind a ticket, or prepare ``data`` here (vLLM's first call)."""
        if isinstance(data, dict) and data.keys() == {TICKET}:
            prepared = self._admitted.take(data[TICKET])
            if prepared is not None:
                return prepared
        try:
            return self.prepare(request.parse_data(data, self.data_type))  # type: ignore[arg-type]
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.param) from None

    def pre_process(self, prompt: P, request_id: str | None = None, **kwargs: object) -> Sequence[PromptType]:
        """Return the prompts, and keep what the answer will need (vLLM's second call)."""
        self._at_work.put(id(request_id), prompt, owner=request_id)
        pooling = self.pooling_params(prompt)
        _pooling.set(pooling if isinstance(pooling, PoolingParams) else deque(pooling))
        return self.prompts(prompt)

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Return the parameters of all prompts of a request (vLLM's third call).

        In process vLLM passes ``params`` of its own and calls once for each prompt, in order.
        """
        pooling = _pooling.get()
        if isinstance(pooling, PoolingParams):
            return pooling
        if params is None:
            return EachItsOwn(pooling)
        return pooling.popleft()

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: object
    ) -> dict[str, Any]:
        """Return the answer (vLLM's last call, in a thread)."""
        prepared = self._at_work.take(id(request_id))
        if prepared is None:
            raise RuntimeError("the request was dropped before its answer was ready: too many at once, or too old")
        try:
            return self.answer(prepared, model_output)
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.param) from None
