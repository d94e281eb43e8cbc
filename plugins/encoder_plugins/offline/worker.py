"""`python -m encoder_plugins.offline.worker DESCRIPTOR ARGUMENTS...`: an engine that takes requests through a connection.

The process behind ``encoder_plugins.offline.client``. One thread reads, checks and tokenises, this one feeds the engine, and one
answers: what comes next is tokenised, and what came last decoded, while the engine computes. What is on its way is bounded
by the tokens of a few steps.
"""

from __future__ import annotations

import pickle
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vllm import EngineArgs, LLMEngine, PoolingParams, PoolingRequestOutput
from vllm.exceptions import VLLMValidationError
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.utils.argparse_utils import FlexibleArgumentParser

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving import processor
from encoder_plugins.serving.http import body

# that the engine may have: one that it computes, one whose answers are made, and what comes next
STEPS = 4

Say = Callable[[int, str, Any], None]


@dataclass(slots=True)
class Work:
    """One request on its way.

    Attributes:
        number: What the other side calls it.
        prepared: What the plugin's processor made of it.
        inputs: One for each prompt, as the engine takes them.
        params: How each is pooled.
        tokens: Of all prompts.
        outputs: What came of them, in their order.
        left: How many are missing.
    """

    number: int
    prepared: Any
    inputs: Sequence[Any]
    params: Sequence[PoolingParams]
    tokens: int
    outputs: list[PoolingRequestOutput | None]
    left: int


class Room:
    """How much may be on its way; a request that is larger than all of it goes alone."""

    def __init__(self, tokens: int, prompts: int) -> None:
        self._tokens = tokens
        self._prompts = prompts
        self._taken_tokens = self._taken_prompts = 0
        self._changed = threading.Condition()

    def take(self, tokens: int, prompts: int) -> None:
        """Wait until there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(tokens, prompts))
            self._taken_tokens += tokens
            self._taken_prompts += prompts

    def give_back(self, tokens: int, prompts: int) -> None:
        """Say that they are answered."""
        with self._changed:
            self._taken_tokens -= tokens
            self._taken_prompts -= prompts
            self._changed.notify()

    def _fits(self, tokens: int, prompts: int) -> bool:
        return self._taken_prompts == 0 or (
            self._taken_tokens + tokens <= self._tokens and self._taken_prompts + prompts <= self._prompts
        )


class Feed:
    """Keeps an engine busy with requests, and says what became of each: its answer, or why there is none."""

    def __init__(self, engine: LLMEngine, say: Say) -> None:
        """Take an engine whose IO processor is ours.

        Args:
            engine: It, with nothing to do.
            say: Gets the number of a request, ``answer``, ``refused`` or ``failed``, and the answer, (message, field), or
                what happened; called from several threads.
        """
        self._engine = engine
        self._say = say
        self._processor = processor.create(engine.vllm_config, engine.renderer)
        self._tokens_taken = engine.renderer.default_cmpl_tok_params
        scheduler = engine.vllm_config.scheduler_config
        self._room = Room(STEPS * scheduler.max_num_batched_tokens, STEPS * scheduler.max_num_seqs)
        self._ready: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._at_work: dict[str, tuple[Work, int]] = {}
        self._answering = ThreadPoolExecutor(1, thread_name_prefix="answer")

    def take(self, number: int, data: object) -> None:
        """Check and tokenise a request, and put it before the engine; waits for room. From one thread."""
        try:
            work = self._prepared(number, data)
        except InvalidRequest as error:
            self._say(number, "refused", (error.message, error.param))
            return
        except Exception as error:  # one request's trouble is not that of the others
            self._say(number, "failed", f"{type(error).__name__}: {error}")
            return
        self._room.take(work.tokens, len(work.inputs))
        self._ready.put(work)

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ready.put(None)

    def run(self) -> None:
        """Compute until nothing more comes."""
        while True:
            while not (self._at_work and self._ready.empty()):
                if (work := self._ready.get()) is None:
                    return
                self._add(work)
            for output in self._engine.step():
                work, place = self._at_work.pop(output.request_id)
                work.outputs[place] = output
                work.left -= 1
                if not work.left:
                    self._answering.submit(self._answer, work)

    def _prepared(self, number: int, data: object) -> Work:
        own = self._processor
        prepared = own.prepare(body.parse_data(data, own.data_type))
        prompts = [parse_model_prompt(self._engine.model_config, prompt) for prompt in own.prompts(prepared)]
        try:
            inputs = self._engine.renderer.render_cmpl(prompts, self._tokens_taken)
        except VLLMValidationError as error:
            raise InvalidRequest(str(error), param=f"data.{error.parameter or 'texts'}") from None
        pooling = own.pooling_params(prepared)
        params = [pooling] * len(inputs) if isinstance(pooling, PoolingParams) else pooling
        tokens = sum(len(given.get("prompt_token_ids", ())) for given in inputs)
        return Work(number, prepared, inputs, params, tokens, [None] * len(inputs), len(inputs))

    def _add(self, work: Work) -> None:
        """Give the engine a request's prompts: all of them or none."""
        given = []
        try:
            for place, (prompt, params) in enumerate(zip(work.inputs, work.params, strict=True)):
                name = f"{work.number}.{place}"
                given.append(self._engine.add_request(name, prompt, params))
                self._at_work[name] = (work, place)
        except ValueError as error:
            self._engine.abort_request(given, internal=True)
            for place in range(len(given)):
                self._at_work.pop(f"{work.number}.{place}", None)
            self._room.give_back(work.tokens, len(work.inputs))
            self._say(work.number, "failed", f"{type(error).__name__}: {error}")

    def _answer(self, work: Work) -> None:
        try:
            outputs: list[Any] = work.outputs
            answer = self._processor.answer(work.prepared, outputs)
        except InvalidRequest as error:
            self._say(work.number, "refused", (error.message, error.param))
        except Exception as error:  # one request's trouble is not that of the others
            self._say(work.number, "failed", f"{type(error).__name__}: {error}")
        else:
            self._say(work.number, "answer", answer)
        finally:
            self._room.give_back(work.tokens, len(work.inputs))


def start(arguments: Sequence[str]) -> LLMEngine:
    """Start an engine from vLLM's own command-line arguments."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="encoder_plugins.offline.worker"))
    chosen = EngineArgs.from_cli_args(parser.parse_args(list(arguments)))
    chosen.disable_log_stats = True
    return LLMEngine.from_engine_args(chosen)


def serve(connection: Connection, engine: LLMEngine) -> None:
    """Answer what comes through ``connection`` until it ends."""
    sending = threading.Lock()

    def say(number: int, kind: str, value: Any) -> None:
        message = pickle.dumps((number, kind, value), pickle.HIGHEST_PROTOCOL)
        with sending:
            connection.send_bytes(message)

    feed = Feed(engine, say)

    def read() -> None:
        try:
            while True:
                message = connection.recv_bytes()
                # pickled by the process that started this one
                feed.take(int.from_bytes(message[:8], "little"), pickle.loads(memoryview(message)[8:]))
        except (EOFError, OSError):
            feed.end()

    connection.send("ready")
    threading.Thread(target=read, name="tokenise", daemon=True).start()
    feed.run()


def main() -> None:
    """Start an engine, and answer until whoever started this process is done with it."""
    serve(Connection(int(sys.argv[1])), start(sys.argv[2:]))


if __name__ == "__main__":
    main()
