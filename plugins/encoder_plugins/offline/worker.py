"""`python -m encoder_plugins.offline.worker DESCRIPTOR ARGUMENTS...`: an engine that takes requests through a connection.

The process behind ``encoder_plugins.offline.client``. Some threads check and tokenise requests, the main thread feeds the engine, and another
thread makes responses: what comes next is tokenised, and what came last decoded, while the engine computes. The tokens in
flight are bounded by those of some batches.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor
from vllm import EngineArgs, LLMEngine
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.utils.argparse_utils import FlexibleArgumentParser

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving import engine as adapter
from encoder_plugins.serving import settings as serving_settings
from encoder_plugins.serving.processor import Prompt, Response
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance
from encoder_plugins.serving.settings import Settings

# that the engine may have: one that it computes, one whose answers are made, and what comes next
BATCHES = 4
# that tokenise; tokenizers release the interpreter lock, what is around them does not
MOST_PARSERS = 4

Send = Callable[[int, str, Any], None]


@dataclass(slots=True)
class Work:
    """One round of prompts of a request.

    Attributes:
        number: What the other side calls the request.
        running: Its processor, which waits for the round.
        round: The prompts.
        later: Whether the request had another round before: what comes of its prompts is small, unlike the rows of texts.
        pooled: What came of them, in their order.
        left: The number that is missing.
    """

    number: int
    running: Running
    round: Round
    later: bool
    pooled: list[Tensor | None] = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.round.prompts)
        self.pooled = [None] * self.left


class TokenBudget:
    """The tokens and prompts that may be in flight; a round that is larger than all of them goes alone."""

    def __init__(self, tokens: int, prompts: int) -> None:
        self._tokens = tokens
        self._prompts = prompts
        self._taken_tokens = self._taken_prompts = 0
        self._changed = threading.Condition()

    def take(self, wanted: Round, *, wait: bool = True) -> None:
        """Take what a round needs; where the budget is spent, wait for it first, or overdraw it."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._fits(wanted))
            self._taken_tokens += wanted.tokens
            self._taken_prompts += len(wanted.prompts)

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        """Give back what some prompts of a round, or all of them, have taken."""
        with self._changed:
            self._taken_tokens -= sum(prompt.tokens for prompt in prompts)
            self._taken_prompts -= len(prompts)
            self._changed.notify_all()

    def _fits(self, wanted: Round) -> bool:
        return self._taken_prompts == 0 or (
            self._taken_tokens + wanted.tokens <= self._tokens
            and self._taken_prompts + len(wanted.prompts) <= self._prompts
        )


class Inline(Executor):
    """Calls in the thread of the caller."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call ``function``; it raises nothing."""
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **named))
        return done


class EngineLoop:
    """Runs a plugin's processor on an engine: many requests at once, each in as many rounds as it needs."""

    def __init__(self, engine: LLMEngine, settings: Settings, send: Send, *, parsers: int | None = None) -> None:
        """Use an engine.

        Args:
            engine: An idle engine.
            settings: What is served on it.
            send: Gets the number of a request, ``answer``, ``refused`` or ``failed``, and the response's body, media type and
                headers, (error, message, field), or what happened; called from several threads.
            parsers: Threads that check and tokenise; 0 does that, and makes the responses, in the calling thread.
        """
        self._engine = engine
        self._send = send
        self._adapters = adapters_of(settings.adapters)
        for lora in self._adapters.values():
            # one that cannot be loaded would end the engine at the first request for it, and with it all others
            engine.add_lora(lora)
        plugin, self._processor = adapter.build_from(engine.vllm_config, settings, frozenset(self._adapters))
        self._task = plugin.task
        scheduler = engine.vllm_config.scheduler_config
        self._budget = TokenBudget(BATCHES * scheduler.max_num_batched_tokens, BATCHES * scheduler.max_num_seqs)
        self._ready: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._in_flight: dict[str, tuple[Work, int]] = {}
        self._rounds = 0
        if parsers is None:
            parsers = min(MOST_PARSERS, len(os.sched_getaffinity(0)))
        # what nobody else makes room for must not be waited for
        self._waits = parsers > 0
        self._parsing: Executor = ThreadPoolExecutor(parsers, thread_name_prefix="parse") if parsers else Inline()
        self._answering: Executor = ThreadPoolExecutor(1, thread_name_prefix="answer") if parsers else Inline()

    def take(self, number: int, body: bytes) -> None:
        """Begin a request; its answer, or why there is none, is sent later."""
        self._parsing.submit(self._guarded, number, self._begin, number, body)

    def end(self) -> None:
        """End ``run``; what has no answer yet gets none, and nothing may be taken after it."""
        # nobody waits for the requests that have not begun
        self._parsing.shutdown(cancel_futures=True)
        self._ready.put(None)

    def run(self) -> None:
        """Compute until the end."""
        while self.step(wait=True):
            pass

    def step(self, *, wait: bool = False) -> bool:
        """Give the engine what is ready, and let it take one step.

        Args:
            wait: Wait for something to do where there is nothing.

        Returns:
            Whether it should be called again: not after the end, and without ``wait`` not where nothing is in flight.
        """
        while not (self._in_flight and self._ready.empty()):
            if not wait and self._ready.empty():
                return False
            if (work := self._ready.get()) is None:
                return False
            self._add(work)
        for output in self._engine.step():
            work, position = self._in_flight.pop(output.request_id)
            work.pooled[position] = output.outputs.data
            work.left -= 1
            if work.later:
                # the next request's first round is computed beside what is left of this one
                self._budget.give_back([work.round.prompts[position]])
            if not work.left:
                self._answering.submit(self._guarded, work.number, self._continue, work)
        return True

    def _begin(self, number: int, body: bytes) -> None:
        request = self._processor.parse(POOLING, body)
        running: Running = self._processor.run(request, ENGINE)
        self._follow(number, running, advance(running), later=False)

    def _continue(self, work: Work) -> None:
        pooled: Any = work.pooled
        try:
            found = advance(work.running, pooled)
        finally:
            if not work.later:
                self._budget.give_back(work.round.prompts)
        self._follow(work.number, work.running, found, later=True)

    def _follow(self, number: int, running: Running, found: Round | Response, *, later: bool) -> None:
        if isinstance(found, Response):
            self._send(number, "answer", (found.body, found.media_type, dict(found.headers)))
            return
        # nobody else could make room for a later round
        self._budget.take(found, wait=self._waits and not later)
        self._ready.put(Work(number, running, found, later))

    def _rendered(self, prompt: Prompt) -> Any:
        """Return a prompt as the engine takes it, its image made the model's pixels."""
        if prompt.image is None:
            return tokens_input(prompt.token_ids)
        (given,) = self._engine.renderer.render_cmpl([adapter.unprocessed(prompt)])
        return given

    def _guarded(self, number: int, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except InvalidRequest as error:
            self._send(number, "refused", (type(error), error.message, error.param))
        except Exception as error:  # one request's failure is not that of the others
            self._send(number, "failed", f"{type(error).__name__}: {error}")

    def _add(self, work: Work) -> None:
        """Give the engine a round's prompts: all of them or none."""
        given = []
        self._rounds += 1
        lora = None if work.round.lora is None else self._adapters[work.round.lora]
        try:
            for position, prompt in enumerate(work.round.prompts):
                name = f"{self._rounds}.{position}"
                params = adapter.pooling_params(prompt, self._task)
                given.append(self._engine.add_request(name, self._rendered(prompt), params, lora_request=lora))
                self._in_flight[name] = (work, position)
        except ValueError as error:
            self._engine.abort_request(given, internal=True)
            for position in range(len(given)):
                self._in_flight.pop(f"{self._rounds}.{position}", None)
            self._budget.give_back(work.round.prompts)
            work.running.close()
            self._send(work.number, "failed", f"{type(error).__name__}: {error}")


def adapters_of(folders: Mapping[str, str]) -> dict[str, LoRARequest]:
    """Return vLLM's request for each adapter by name."""
    return {
        name: LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)
        for number, (name, path) in enumerate(folders.items(), 1)
    }


def start(arguments: Sequence[str]) -> LLMEngine:
    """Start an engine from vLLM's own command-line arguments."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="encoder_plugins.offline.worker"))
    chosen = EngineArgs.from_cli_args(parser.parse_args(list(arguments)))
    chosen.disable_log_stats = True
    return LLMEngine.from_engine_args(chosen)


def serve(connection: Connection, engine: LLMEngine, settings: Settings) -> None:
    """Answer what comes through ``connection`` until it ends."""
    sending = threading.Lock()

    def send(number: int, kind: str, value: Any) -> None:
        message = pickle.dumps((number, kind, value), pickle.HIGHEST_PROTOCOL)
        with sending:
            connection.send_bytes(message)

    loop = EngineLoop(engine, settings, send)

    def read() -> None:
        try:
            while True:
                message = connection.recv_bytes()
                loop.take(int.from_bytes(message[:8], "little"), message[8:])
        except (EOFError, OSError):
            loop.end()

    # who has closed the connection while the engine started waits for it to end, and for no message about that
    with contextlib.suppress(ConnectionError):
        connection.send("ready")
    threading.Thread(target=read, name="read", daemon=True).start()
    loop.run()


def main() -> None:
    """Start an engine, and answer until the process that started this one closes the connection."""
    settings = serving_settings.read(os.environ)
    assert settings is not None
    serve(Connection(int(sys.argv[1])), start(sys.argv[2:]), settings)


if __name__ == "__main__":
    main()
