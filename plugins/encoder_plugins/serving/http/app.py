"""The server's ASGI application: answers the plugin's routes on vLLM's engine, and passes probes and metrics on to vLLM.

A class for vLLM's ``--middleware``: vLLM builds its FastAPI application, this one is put in front of it, and what is neither a route of
the plugin nor one of ``PASSED`` does not exist. vLLM's own handlers read bodies without bound, parse them on the event loop, and
answer some malformed ones with 500; none of them ever sees a request for an answer.

The state of a request lives in the coroutine that answers it, and ends with it: when the client disconnects, the coroutine is
cancelled, and the engine aborts its prompts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from encoder_plugins import catalog, compatibility
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.plugin import Plugin, Route
from encoder_plugins.serving import settings as serving_settings
from encoder_plugins.serving.graceful_shutdown import Drain
from encoder_plugins.serving.http import connection, openapi, worker_counters
from encoder_plugins.serving.http.admission import (
    App,
    ClientDisconnected,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    check_header_size,
    check_headers,
    discard_body,
    read_body,
    send_refusal,
    send_response,
)
from encoder_plugins.serving.http.balance import Connections
from encoder_plugins.serving.http.metrics import Counts
from encoder_plugins.serving.http.tracing import Tracing
from encoder_plugins.serving.processor import Engine, Processor, Response, Starting

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

logger = logging.getLogger(__name__)
# vLLM shows the progress of its start, and that of nothing outside of its own namespace
vllm_logger = logging.getLogger("vllm.encoder_plugins")

# what vLLM's own application answers
PASSED = frozenset({"/health", "/metrics", "/v1/models", "/version"})

OPENAPI = "/openapi.json"

# bodies up to this size are parsed on the event loop: a tokenizer takes half a microsecond a byte, and below a millisecond a thread
# costs more than it gives
INLINE_BYTES = 2048

# seconds after which a thread that parses gives the interpreter lock to the event loop; Python's default is 5 ms
SWITCH_SECONDS = 0.001

# seconds between two checks of whether the engine is alive; its death also shows in the next request
WATCH_SECONDS = 1.0

# what a page of another origin may read of an answer, beside the headers that browsers always let it read: how bytes become arrays, and when to
# send a request again
EXPOSED = (
    "x-encoder-shape",
    "x-encoder-dtype",
    "x-encoder-dimensions",
    "x-encoder-rows",
    "x-encoder-indices",
    "x-encoder-pages",
    "retry-after",
    "x-request-id",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What is served.

    Attributes:
        plugin: The plugin.
        processor: Its processor.
        engine: The engine that it uses.
        counts: The counters of its requests.
        counters: What all processes behind the port have in flight.
        engine_died: Returns whether the engine has died.
        tracing: The spans of its requests.
    """

    plugin: Plugin
    processor: Processor[Any]
    engine: Engine
    counts: Counts
    counters: worker_counters.WorkerCounters
    engine_died: Callable[[], bool]
    tracing: Tracing = field(default_factory=Tracing)


class Application:
    """Answers the plugin's routes.

    Attributes:
        failed: Whether the server of this process could not start, or has lost its engine: vLLM would end it with status 0.
    """

    failed = False

    def __init__(self, app: App, serving: Serving | None = None) -> None:
        """Stand before ``app``.

        Args:
            app: vLLM's application.
            serving: What is served; None builds it from the engine of ``app`` when the server starts.
        """
        self._app = app
        self._drain = Drain()
        # tokenizers release the interpreter lock; as many threads as cores keep a long text from delaying short ones
        self._threads = ThreadPoolExecutor(max_workers=max(2, len(os.sched_getaffinity(0))), thread_name_prefix="parse")
        # the plugin's routes, which may need a key; and all paths that vLLM does not answer
        self._answer: App = self._answer_request
        self._own: App = self._answer_own
        self._watch: asyncio.Task[None] | None = None
        # that wait for the engine; and whether none of them is answered any more
        self._running: set[asyncio.Task[Any]] = set()
        self._engine_ended = False
        self._routes: Mapping[str, Route] = {}
        if serving is not None:
            self._use(serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        if path == "/health" and not self._serving.counters.complete():
            await send_refusal(Refusal(503, "not all processes behind this port listen yet", retry_after=1), send)
        elif path in PASSED:
            version = compatibility.installed_plugins() if path == "/version" else None
            headers = {compatibility.PLUGIN_VERSION_HEADER: version} if version else {}
            await self._app(scope, receive, _with_headers(send, headers))
        else:
            await self._own({**scope, "path": path}, receive, send)

    async def _answer_own(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path in self._routes:
            if method == "POST":
                await self._answer(scope, receive, send)
            else:
                await _refuse_method(scope, send, "POST")
        elif path == OPENAPI and method != "GET":
            await _refuse_method(scope, send, "GET")
        elif path == OPENAPI:
            processor = self._serving.processor
            found = openapi.document(self._serving.plugin, processor.schemas, asdict(processor.limits))
            if root := scope.get("root_path"):
                # clients put the paths of the document behind it
                found["servers"] = [{"url": root}]
            await send_response(send, 200, msgspec.json.encode(found), "application/json", {})
        else:
            await send_refusal(Refusal(404, self._unknown(path)), send)

    def _unknown(self, path: str) -> str:
        """Return the message about a path that is not served."""
        plugin = self._serving.plugin
        if any(route.path == path for other in catalog.plugins().values() for route in other.routes):
            routes = " or ".join(self._routes)
            return f"the plugin {plugin.name} does not answer {path}; use POST {routes}"
        known = ", ".join(sorted({*self._routes, *PASSED, OPENAPI}))
        return f"no such path; there is: {known}"

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._start(scope["app"])
        except Exception as error:  # whatever it is, uvicorn would serve on without us
            logger.exception("the server cannot start")
            Application.failed = True
            await receive()
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        client = scope["app"].state.engine_client

        async def receiving() -> Message:
            message = await receive()
            # vLLM looks for a dead engine, too, and may be the first to end the server
            self._note_dead_engine(client)
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.failed" and isinstance(sys.exception(), asyncio.CancelledError):
                # a server that ends at once waits for nothing; uvicorn would print the traceback of that
                message = {"type": message["type"]}
            await send(message)

        await self._app(scope, receiving, sending)

    def _use(self, serving: Serving) -> None:
        self._serving = serving
        self._routes = {route.path: route for route in serving.plugin.routes}

    async def _start(self, app: Any) -> None:
        """Prepare for requests, in the event loop of a server that is about to listen."""
        self._drain.take_over(partial(self._end, app))
        sys.setswitchinterval(SWITCH_SECONDS)
        # a processor may have much to read and to tokenise, and vLLM's engine client lives in this event loop
        serving = await asyncio.get_running_loop().run_in_executor(self._threads, build, app, self._threads)
        self._use(serving)
        if not serving.plugin.takes_images:
            import torch

            # requests are what is done at the same time: torch's own threads spin between two operations, and each thread of
            # requests would have as many of them as there are cores. Images are processed in this process, and one alone may use them
            torch.set_num_threads(1)
        if serving.plugin.label_sets:
            for sentence in await cast(Starting, serving.processor).start(serving.engine):
                vllm_logger.info(sentence)
        self._answer = with_keys(self._answer_request, app.state.args)
        self._own = with_origins(self._answer_own, app.state.args)
        # uvicorn reads it for every new connection, and none has been accepted yet
        connections = Connections(self._serving.counters, time.monotonic)
        seconds = self._serving.processor.limits.header_seconds
        app.state.server.config.http_protocol_class = connection.protocol(seconds, connections)
        self._watch = asyncio.create_task(self._watch_engine(app.state.engine_client, app.state.server))
        self._serving.counters.open()

    def _end(self, app: Any, at_once: bool) -> None:
        """End the server, and the requests that are still in flight: they have had their time."""
        self._end_requests()
        app.state.server.should_exit = True
        # uvicorn does not wait for connections to close then
        app.state.server.force_exit = at_once

    def _end_requests(self) -> None:
        self._engine_ended = True
        for task in self._running:
            task.cancel()

    async def _watch_engine(self, client: EngineClient, server: Any) -> None:
        """End the server when its engine dies, and the requests that wait for it."""
        while not client.errored:
            await asyncio.sleep(WATCH_SECONDS)
        self._end_requests()
        if self._note_dead_engine(client):
            server.should_exit = True

    def _note_dead_engine(self, client: EngineClient) -> bool:
        """Return whether the engine has died; it also ends when the server is stopped."""
        if client.errored and not self._drain.stopping and not Application.failed:
            logger.error("the engine has died; the server ends")
            Application.failed = True
        return Application.failed

    async def _answer_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = self._serving.counts
        counts.request()
        with self._serving.tracing.request(scope) as outcome:
            try:
                response = await self._respond(self._routes[scope["path"]], scope, receive)
            except Refusal as refusal:
                counts.rejected(refusal.status)
                outcome.answered(refusal.status)
                await send_refusal(refusal, _with_headers(send, self._closing(scope)))
            except ClientDisconnected:
                counts.cancelled()
                outcome.cancelled()
            else:
                outcome.answered(200, response.prompt_tokens)
                headers = {**response.headers, **self._closing(scope)}
                await send_response(send, 200, response.body, response.media_type, headers)

    def _closing(self, scope: Scope) -> Mapping[str, str]:
        """Return the header of an answer behind which the connection is closed; none where it is kept."""
        own = connection.of(scope)
        close = self._drain.stopping or (own is not None and own.should_close())
        return {"connection": "close"} if close else {}

    async def _respond(self, route: Route, scope: Scope, receive: Receive) -> Response:
        limits = self._serving.processor.limits
        if self._serving.counters.total() >= limits.in_flight:
            self._drain.refused()
            await discard_body(receive, limits.body_seconds)
            raise Refusal(503, f"Too many concurrent requests (limit {limits.in_flight})", retry_after=1)
        with self._counting():
            try:
                check_header_size(scope)
                check_headers(
                    {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}, limits
                )
                body = await read_body(receive, limits)
            except Refusal as refusal:
                if refusal.status == 413:
                    await discard_body(receive, limits.body_seconds)
                raise
            return await until_disconnect(self._run(route, body), receive)

    async def _run(self, route: Route, body: bytes) -> Response:
        processor, engine = self._serving.processor, self._serving.engine
        try:
            if len(body) <= INLINE_BYTES:
                request = processor.parse(route, body)
            else:
                loop = asyncio.get_running_loop()
                request = await loop.run_in_executor(self._threads, processor.parse, route, body)
            return await self._unless_engine_ends(processor.run(request, engine))
        except InvalidRequest as error:
            again = 1 if error.status == 503 else None
            raise Refusal(error.status, str(error), param=error.param, retry_after=again) from None
        except Refusal:
            raise
        except Exception as error:  # one request's failure must not end the server
            if self._serving.engine_died():
                raise self._ended() from None
            logger.exception("a request failed")
            raise Refusal(500, f"the request failed: {type(error).__name__}") from None

    async def _unless_engine_ends(self, work: Awaitable[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._engine_ended and task.uncancel() == 0:
                raise self._ended() from None
            raise
        finally:
            self._running.discard(task)

    def _ended(self) -> Refusal:
        """Return what a request gets that another server may answer."""
        stopped = "the server was stopped before it had answered"
        return Refusal(503, stopped if self._drain.stopping else "the engine has died; the server ends", retry_after=1)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count one request, here and among all processes, for as long as the block runs."""
        try:
            with self._drain.counting():
                self._publish()
                yield
        finally:
            self._publish()

    def _publish(self) -> None:
        self._serving.counters.publish(self._drain.in_flight)
        self._serving.counts.in_flight(self._drain.in_flight)


async def until_disconnect(work: Awaitable[T], receive: Receive) -> T:
    """Return the result of ``work``, which is cancelled when the client disconnects.

    Raises:
        ClientDisconnected: It was.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watcher.cancel()


def build(app: Any, threads: ThreadPoolExecutor) -> Serving:
    """Return what vLLM's application serves with: the one place that knows where vLLM keeps its engine.

    Raises:
        RuntimeError: The server was not started by ``encoder-plugins serve``.
    """
    given = serving_settings.read(os.environ)
    if given is None:
        raise RuntimeError(f"{serving_settings.VARIABLE} is not set: start the server with `encoder-plugins serve`")
    from encoder_plugins.serving import engine

    client: EngineClient = app.state.engine_client
    adapters = dict(app.state.openai_serving_models.lora_requests)
    plugin, processor = engine.build_from(client.vllm_config, given, frozenset(adapters))
    counts = Counts(plugin.name, processor.limits.in_flight)
    traces = client.vllm_config.observability_config.otlp_traces_endpoint
    tracing = Tracing(plugin.name, enabled=traces is not None)
    counters = worker_counters.counters_of(given.counters)
    asynchronous = engine.AsyncEngine(
        client,
        plugin,
        threads,
        adapters=adapters,
        count_tokens=counts.tokens,
        trace_headers=tracing.headers,
        is_alone=lambda: counters.of_engine() <= 1,
    )
    return Serving(
        plugin=plugin,
        processor=processor,
        engine=asynchronous,
        counts=counts,
        counters=counters,
        engine_died=lambda: client.errored,
        tracing=tracing,
    )


def with_origins(app: App, args: Any) -> App:
    """Return ``app`` behind what vLLM puts before its own handlers: cross-origin requests, and ids of requests in answers."""
    from starlette.middleware.cors import CORSMiddleware
    from vllm.entrypoints.serve.middleware.x_request_id import XRequestIdMiddleware

    found: Any = CORSMiddleware(
        app,
        allow_origins=args.allowed_origins,
        allow_credentials=args.allow_credentials,
        allow_methods=args.allowed_methods,
        allow_headers=args.allowed_headers,
        expose_headers=EXPOSED,
    )
    if args.enable_request_id_headers:
        found = XRequestIdMiddleware(found)
    return found  # type: ignore[no-any-return]


def with_keys(app: App, args: Any) -> App:
    """Return ``app`` for requests with one of the server's API keys, if it has any.

    vLLM's middleware itself checks those below ``/v1`` and ``/v2`` only.
    """
    from starlette.datastructures import Headers
    from vllm import envs
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
    if not keys:
        return app
    authentication = AuthenticationMiddleware(app, tokens=keys)

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if authentication.verify_token(Headers(scope=scope)):
            await app(scope, receive, send)
        else:
            refusal = Refusal(401, "the API key is missing or wrong; send it as Authorization: Bearer")
            await send_refusal(refusal, _with_headers(send, {"www-authenticate": "Bearer"}))

    return checked


def _path(scope: Scope) -> str:
    """Return the path of a request, without the prefix (``--root-path``) that some proxies leave in front of it."""
    path: str = scope["path"]
    rest = path.removeprefix(scope.get("root_path", ""))
    return rest if rest.startswith("/") else path


async def _refuse_method(scope: Scope, send: Send, allowed: str) -> None:
    refusal = Refusal(405, f"{scope['method']} {scope['path']} is not served; use {allowed}")
    await send_refusal(refusal, _with_headers(send, {"allow": allowed}))


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def adding(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return adding
