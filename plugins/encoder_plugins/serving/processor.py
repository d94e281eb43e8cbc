"""What a plugin serves with: from the bytes of a request to the bytes of its response, with an engine in between.

A processor knows no vLLM and no HTTP. The server (``serving.http.app``), the process behind ``offline.Model`` and the adapter for
plain vLLM (``serving.io_processor``) all run the same processor; only the ``Engine`` that they hand to it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from encoder_plugins.plugin import Route
from encoder_plugins.serving.limits import RequestLimits

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

Primitive: TypeAlias = "str | bytes | int | float | bool | Sequence[Primitive] | Mapping[str, Primitive] | None"

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingContext:
    """What a processor is built from. Plain values, so that tests and other processes can make one.

    Attributes:
        model: The artifact's model folder.
        max_model_len: Tokens of the longest prompt that the engine takes.
        names: How requests may call the model; the first one is used in responses.
        limits: The plugin's limits by name; ``serving.limits.typed`` makes an object of them.
        dtype: The engine's dtype, e.g. ``bfloat16``.
        digest: The artifact's digest; empty where the folder is not an artifact.
        label_sets: The artifact's folder of label sets, which need not exist; None where the model's folder is not in an artifact.
        adapters: The names of LoRA adapters that requests may use.
        media_hosts: The hosts from which requests may have images and PDFs fetched, from ``inputs.remote.host_of``.
    """

    model: Path
    max_model_len: int
    names: tuple[str, ...]
    limits: Mapping[str, int]
    dtype: str = "float32"
    digest: str = ""
    label_sets: Path | None = None
    adapters: frozenset[str] = field(default_factory=frozenset)
    media_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One unit of work for the engine, pooled to one tensor.

    Attributes:
        token_ids: At least one, and at most the context's ``max_model_len``.
        parameters: What the model and its pooler need beside them (``PoolingParams.extra_kwargs``).
        use_activation: Whether the pooler applies its activation; None leaves that to the pooler.
        image: An RGB image, whose place is a single token of ``token_ids``; the engine puts as many there as the image has.
            None for a prompt of text alone.
        image_tokens: The tokens that the image has; 0 without one.
    """

    token_ids: list[int]
    parameters: Mapping[str, Primitive] | None = None
    use_activation: bool | None = None
    image: Image | None = None
    image_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the engine reads."""
        return len(self.token_ids) + (0 if self.image is None else self.image_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Prompts of a request that are still to be made.

    Attributes:
        make: Returns them; it may be called in a thread, after the parts before it.
        size: About how many microseconds of one core that takes.
    """

    make: Callable[[], Sequence[Prompt]]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A finished response.

    Attributes:
        body: What the client gets, serialised.
        media_type: The content type of ``body``.
        prompt_tokens: Tokens that the engine read for it.
        headers: Further headers of the response, e.g. the shape of a binary body.
    """

    body: bytes
    media_type: str = "application/json"
    prompt_tokens: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Schema:
    """What a route takes and gives, for the OpenAPI document.

    Attributes:
        request: The type of the request's body.
        responses: The types that the body of a JSON response can have.
        binary: Whether a response can be binary instead.
    """

    def __init__(self, request: Any, *responses: Any, binary: bool = False) -> None:
        self.request = request
        self.responses = responses
        self.binary = binary


class Engine(Protocol):
    """What a processor sees of vLLM.

    Attributes:
        concurrent: Whether ``encode_parts`` has some computed while the next ones are made. Where it has not, what comes
            before the first ``encode`` is done while the engine computes other requests.
    """

    @property
    def concurrent(self) -> bool:
        """See above."""

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[Tensor]:
        """Return one pooled tensor for each prompt, in order. Cancelling it aborts all of them in the engine.

        Args:
            prompts: Any number of them; none returns an empty list.
            lora: The name of an adapter of the context; None for the model itself.
        """

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[Tensor]:
        """Do what ``encode`` does for the prompts of all parts; the engine computes some while the next ones are made.

        Raises what ``Part.make`` raises; the prompts that the engine has then are aborted.
        """

    async def compute(
        self, function: Callable[..., ResultT], *arguments: object, size: int, threads: Executor | None = None
    ) -> ResultT:
        """Call ``function(*arguments)`` where it delays no other request, and return what it returns.

        The only way for a processor to leave the event loop: the call is made inline where it is short, else in a thread.

        Args:
            function: What to call; it must be safe in a thread.
            arguments: Its arguments.
            size: About how many microseconds of one core it takes; the order of magnitude is enough.
            threads: The threads for a call that waits for something else than a core: those of all requests would be held up.
        """


class Processor(Protocol[RequestT]):
    """One plugin's requests. Built as ``Processor(context: ServingContext)``; used by several threads at once.

    Attributes:
        schemas: The types behind the ``schema`` of each of the plugin's routes.
    """

    schemas: ClassVar[Mapping[str, Schema]]

    @property
    def limits(self) -> RequestLimits:
        """The limits of a request."""

    def parse(self, route: Route, body: bytes) -> RequestT:
        """Turn a body into a checked and tokenised request. May run in a thread.

        Whatever it accepts can neither fail in the model or pooler nor exceed a limit.

        Args:
            route: The plugin's route that the request came by.
            body: The whole body.

        Raises:
            InvalidRequest: The request cannot be answered; ``param`` names the field.
            UnknownModel: It names a model that is not served here.
            UnknownAdapter: It names an adapter that is not served here.
        """

    async def run(self, request: RequestT, engine: Engine) -> Response:
        """Answer a request; may encode any number of times.

        Raises:
            InvalidRequest: The answer would exceed a limit.
        """


class Starting(Protocol):
    """What the processor of a plugin with label sets has, too."""

    async def start(self, engine: Engine) -> Sequence[str]:
        """Have the engine do what is better done before the first request; return what is worth a line in the log each."""
