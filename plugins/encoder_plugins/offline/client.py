"""An artifact without a server: requests as ``POST /pooling`` takes them go in, the same answers come out, in order.

    with offline.Model("artifacts/ner") as model:
        for answer in model.map({"text": text, "labels": ["company", "city"]} for text in texts):
            ...

Each engine has a process of its own that tokenises what comes next, and decodes what came last, while the engine computes
(``encoder_plugins.offline.worker``). Nothing of vLLM is imported here, and the environment of this process does not change.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import msgspec

from encoder_plugins import catalog, compatibility
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import BadArgument, EngineEnded, InvalidRequest
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.encodings import BINARY, decode_bytes
from encoder_plugins.plugin import Accelerator
from encoder_plugins.serving import command, entrypoint, host, mps
from encoder_plugins.serving import limits as serving_limits
from encoder_plugins.serving.settings import Settings

# of requests without an answer yet, for each engine: some batches of a large one
MOST_BYTES = 8 << 20
MOST_REQUESTS = 2048
STOP_SECONDS = 30.0
# what no request is
_END: Any = object()

# what `data` is in the body of a response; an array for the encoding "bytes"
Answer = Any


class Model:
    """A prepared artifact on this machine's accelerator. Its methods may be called by several threads at once.

    Attributes:
        engines: The number of engines.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        accelerator: Accelerator | None = None,
        dtype: str | None = None,
        max_model_len: int | None = None,
        limits: Mapping[str, int] | None = None,
        engines: int | None = None,
        adapters: Mapping[str, Path | str] | None = None,
        arguments: Sequence[str] = (),
        digest: str | None = None,
    ) -> None:
        """Check the artifact, start its engines, and wait until they are ready.

        Args:
            folder: The prepared directory.
            accelerator: What the engines run on; None takes this machine's.
            dtype: Their dtype; None takes the plugin's own for the accelerator.
            max_model_len: Tokens of the longest prompt; None takes the checkpoint's.
            limits: Limits of requests by name, where they are not to be the plugin's defaults.
            engines: Engines on this accelerator; None leaves the choice to ``tuning``, as ``serve`` does.
            adapters: The folders of LoRA adapters by name.
            arguments: Further arguments for vLLM; where they contradict ours, they win.
            digest: What the artifact's digest must be; None trusts the artifact's own manifest.

        Raises:
            ChecksumMismatch: The artifact is not what it should be.
            NotServable: This installation cannot run it.
            BadArgument: An argument has a value that it cannot have, there is no such limit, or an adapter cannot be read.
            EngineEnded: An engine did not start; its messages are on standard error.
        """
        if accelerator is not None and accelerator not in get_args(Accelerator):
            raise BadArgument(f"accelerator: {accelerator!r} is not one of {', '.join(get_args(Accelerator))}")
        _check_count("max_model_len", max_model_len)
        _check_count("engines", engines)
        if isinstance(arguments, str):
            raise BadArgument("arguments: it is one text; pass a list of texts")
        path = Path(folder).absolute()
        read = manifest.verify(path, digest)
        plugin = catalog.get(read.plugin)
        values = serving_limits.parse(plugin, [f"{name}={value}" for name, value in (limits or {}).items()])
        service = command.Service(
            artifact=path,
            name=plugin.name,
            port=0,
            accelerator=accelerator or host.this_accelerator(),
            limits=values,
            dtype=dtype,
            max_model_len=max_model_len,
            engines=engines,
            api_servers=1,
            adapters=tuple(entrypoint.read_adapter(name, Path(at), plugin) for name, at in (adapters or {}).items()),
            arguments=tuple(arguments),
        )
        command.check_servable(plugin, compatibility.installed_vllm(), os.environ)
        here = host.this_host()
        checkpoint = entrypoint.engine_settings(plugin, service)
        tuning = entrypoint.tuning_of(service, checkpoint, here)
        settings = Settings(
            plugin=plugin.name,
            limits=values,
            digest=read.digest,
            adapters={adapter.name: str(adapter.path) for adapter in service.adapters},
        )
        environment = command.environment(os.environ, service, tuning, here.cores, settings)
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if service.accelerator == "cpu":
            # the engine's process does the work itself, instead of starting a worker process for it
            environment.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        line = command.engine_arguments(service, plugin, checkpoint, tuning)
        self.engines = tuning.engines
        self._engines: list[_Engine] = []
        # a notebook replaces its model without closing it, and the next one needs the memory; at the end of the program the engines
        # notice that by themselves
        weakref.finalize(self, _abandon, self._engines).atexit = False
        # a program may end without closing this
        self._shared_gpu = contextlib.ExitStack()
        atexit.register(self._shared_gpu.close)
        at_once = command.takes_turns(service, tuning)
        try:
            if service.accelerator == "nvidia" and tuning.engines > 1:
                environment |= self._shared_gpu.enter_context(mps.shared_gpu(environment))
            with tempfile.TemporaryDirectory(prefix="encoder-turns-") as turns:
                # vLLM measures a GPU's memory at start, while no other process may take any: where engines take no turns at
                # that, they start one after the other
                environment[command.START_TURNS] = str(Path(turns) / "start-turns")
                for _ in range(tuning.engines):
                    self._engines.append(_Engine(line, environment))
                    if not at_once:
                        self._engines[-1].wait_until_ready()
                for engine in self._engines if at_once else ():
                    engine.wait_until_ready()
        except BaseException:
            for engine in self._engines:
                engine.cancel_start()
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answer(self, data: Mapping[str, Any], *, lora: str | None = None) -> Answer:
        """Return the answer to one request.

        Raises:
            InvalidRequest: It cannot be answered; ``param`` names the field.
            EngineEnded: The engine ended before it had an answer.
        """
        return self.submit(data, lora=lora).result()

    def submit(self, data: Mapping[str, Any], *, lora: str | None = None) -> Future[Answer]:
        """Give one request to an engine; waits while the engine has as much as it may have.

        Args:
            data: What ``data`` is in the body of ``POST /pooling``.
            lora: The name of an adapter; None for none.

        Returns:
            What will have the answer, or raise what ``answer`` raises.
        """
        try:
            return self._submit(bodies.encode(data, lora=lora))
        except InvalidRequest as error:
            return _failed(error)

    def map(self, requests: Iterable[Mapping[str, Any]], *, lora: str | None = None) -> Iterator[Answer]:
        """Return the answers to ``requests``, in their order.

        Only as many requests are read ahead of the answer that is taken next as keep the engines busy. A request that
        cannot be answered raises its error in its own position, and the next call returns the answer of the next one.
        """
        return _Answers(self, requests, lora)

    def close(self) -> None:
        """End the engines; requests without an answer get none."""
        for engine in self._engines:
            engine.hang_up()
        # those that still start hear of it when they are ready; all have the same time for it
        end = time.monotonic() + STOP_SECONDS
        for engine in self._engines:
            engine.wait(max(0.0, end - time.monotonic()))
        self._shared_gpu.close()
        atexit.unregister(self._shared_gpu.close)

    def _submit(self, body: bytes) -> Future[Answer]:
        # one may end while a request waits for room in it
        while left := [engine for engine in self._engines if not engine.ended]:
            with contextlib.suppress(EngineEnded):
                return min(left, key=lambda engine: engine.waiting).submit(body)
        raise EngineEnded("the engine has ended")


def _check_count(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise BadArgument(f"{name}: {value!r} is not a whole number above 0")


def _abandon(engines: Sequence[_Engine]) -> None:
    """Let the engines of a model that nothing refers to any more end."""
    for engine in engines:
        engine.abandon()


class _Answers(Iterator[Answer]):
    """The answers of ``map``."""

    def __init__(self, model: Model, requests: Iterable[Mapping[str, Any]], lora: str | None) -> None:
        self._model = model
        self._requests = iter(requests)
        self._lora = lora
        self._given: deque[tuple[Future[Answer], int]] = deque()
        self._bytes = 0
        self._most = model.engines

    def __next__(self) -> Answer:
        while self._bytes < MOST_BYTES * self._most and len(self._given) < MOST_REQUESTS * self._most:
            # None may be one of them: a request that cannot be answered, in its position
            try:
                data = next(self._requests, _END)
            except Exception as error:  # the caller's own, behind the answers to the requests before it
                self._given.append((_failed(error), 0))
                break
            if data is _END:
                break
            try:
                body = bodies.encode(data, lora=self._lora)
            except InvalidRequest as error:
                self._given.append((_failed(error), 0))
                continue
            self._given.append((self._model._submit(body), len(body)))
            self._bytes += len(body)
        if not self._given:
            raise StopIteration
        future, size = self._given.popleft()
        self._bytes -= size
        return future.result()


def _failed(error: Exception) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_exception(error)
    return future


class _Engine:
    """One engine's process, and the requests that it has.

    Attributes:
        waiting: Bytes of the requests without an answer.
        ended: Whether it takes no more of them.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it."""
        self._reader: threading.Thread | None = None
        self._here, there = Pipe()
        command = [sys.executable, "-m", "encoder_plugins.offline.worker", str(there.fileno()), *arguments]
        # what it prints is not output of this program; a group of its own, so that nothing of it can stay behind
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=2,
            process_group=0,
        )
        there.close()
        # a process that it started may hold the connection open after it has gone
        threading.Thread(target=self._watch, name="engine", daemon=True).start()
        self.waiting = 0
        self._numbers = itertools.count()
        self._futures: dict[int, tuple[Future[Answer], int]] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self.ended = False
        self._abandoned = False

    def wait_until_ready(self) -> None:
        """Wait until it takes requests.

        Raises:
            EngineEnded: It ended before that.
        """
        try:
            self._here.recv()
        except (EOFError, ConnectionError):
            self.wait(STOP_SECONDS)
            raise EngineEnded(f"the engine ended with {self._process.returncode} before it was ready") from None
        self._reader = threading.Thread(target=self._read, args=(self._here,), name="answers", daemon=True)
        self._reader.start()

    def submit(self, body: bytes) -> Future[Answer]:
        """Send a request; waits for room."""
        future: Future[Answer] = Future()
        size = len(body)
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._has_room(size))
            if self.ended:
                raise EngineEnded("the engine has ended")
            number = next(self._numbers)
            self._futures[number] = (future, size)
            self.waiting += size
        # where the process has ended, the thread that reads notices it, and ends every future
        with self._sending, contextlib.suppress(OSError):
            self._here.send_bytes(number.to_bytes(8, "little") + body)
        return future

    def _has_room(self, size: int) -> bool:
        return not self._futures or (self.waiting + size <= MOST_BYTES and len(self._futures) < MOST_REQUESTS)

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, kind, value = connection.recv()
                with self._changed:
                    future, size = self._futures.pop(number)
                    self.waiting -= size
                    self._changed.notify()
                    done = self._abandoned and not self._futures
                _settle(future, kind, value)
                if done:
                    self.hang_up()
        with self._changed:
            self.ended = True
            left = [future for future, _ in self._futures.values()]
            self._futures.clear()
            self._changed.notify_all()
        for future in left:
            _settle(future, "ended", "the engine ended before it had an answer")

    def _watch(self) -> None:
        self._process.wait()
        self.hang_up()

    def abandon(self) -> None:
        """Let it end when it has answered the requests that it has: nobody can send another one."""
        with self._changed:
            self._abandoned = True
            done = not self._futures
        if done:
            self.hang_up()

    def cancel_start(self) -> None:
        """End it if it is not ready yet: it has nothing to finish, and would not notice the hang-up before."""
        if self._reader is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def hang_up(self) -> None:
        """Let it end."""
        # the connection itself is closed when the thread that reads from it has seen its end
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._here.fileno())) as both:
            both.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; if it does not in time, end it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        self._here.close()


def _settle(future: Future[Answer], kind: str, value: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if kind == "answer":
        body, media_type, headers = value
        answer = decode_bytes(body, headers) if media_type == BINARY else msgspec.json.decode(body)["data"]
        future.set_result(answer)
    elif kind == "refused":
        error, message, param = value
        future.set_exception(error(message, param=param))
    else:
        future.set_exception(EngineEnded(value) if kind == "ended" else RuntimeError(value))
