"""A process of limited memory and time, for what cannot be stopped, or may crash, in the server's own.

It has neither the server's environment nor, but for its three pipes, its files, and it cannot write files. One that exceeds its limits or
crashes is replaced with the next call.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, BinaryIO

from encoder_plugins.inputs import limited_worker
from encoder_plugins.inputs.limited_worker import HEADER

# of the JSON value of an answer
MOST_VALUE_BYTES = 64 << 20

# for Python and the worker's libraries on a machine that is busy; no call is charged for it
START_SECONDS = 60.0


class ProcessEnded(Exception):  # noqa: N818 - an outcome of a call, not a failure of ours
    """The process has ended before it had answered.

    Attributes:
        timed_out: Whether the call took too long; otherwise it crashed, or needed more memory than it may have.
    """

    def __init__(self, *, timed_out: bool) -> None:
        super().__init__("it took too long" if timed_out else "it crashed, or needed too much memory")
        self.timed_out = timed_out


class LimitedProcess:
    """Calls the function ``answers`` of a file in another process, which starts with the first call.

    Threads may share it; there is one call at a time.

    Args:
        worker: The file; ``inputs.limited_worker`` says what it defines.
        memory_bytes: The address space that the process may have.
    """

    def __init__(self, worker: str, *, memory_bytes: int) -> None:
        self._command = [sys.executable, "-I", "-B", limited_worker.__file__, worker, str(memory_bytes)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = _nothing

    def call(
        self,
        arguments: Any,
        content: bytes = b"",
        *,
        processor_seconds: float,
        seconds: float,
        most_bytes: int = 0,
    ) -> Generator[tuple[Any, bytes], None, None]:
        """Yield what ``answers`` of the worker yields, as it does. A caller that stops early has to close the generator.

        Args:
            arguments: A JSON value.
            content: Bytes that go with it.
            processor_seconds: How long its processor may be busy.
            seconds: How long all may take, the caller's own work between the answers included, and the start of a process not.
            most_bytes: Bytes of one answer, beside its JSON value.

        Raises:
            ProcessEnded: It exceeded a limit, or crashed. What it had yielded until then is correct.
            RuntimeError: No process can be started.
        """
        with self._lock:
            process = self._started()
            overdue = threading.Event()
            timer = threading.Timer(seconds, _overdue, (process, overdue))
            timer.daemon = True
            timer.start()
            finished = False
            try:
                yield from _answers(process, [processor_seconds, arguments], content, most_bytes)
                finished = True
            except (BrokenPipeError, EOFError):
                status = process.wait()
                raise ProcessEnded(timed_out=overdue.is_set() or status == -signal.SIGPROF) from None
            finally:
                timer.cancel()
                if not finished:
                    # answers that nobody reads would be those of the next call
                    self._end()

    def close(self) -> None:
        """End the process; it also ends with this object."""
        with self._lock:
            self._end()

    @property
    def process_id(self) -> int | None:
        """The process; None before the first call."""
        return None if self._process is None else self._process.pid

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            # credentials of the server stay with the server
            environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
            pipe = subprocess.PIPE
            # a group of its own: a terminal's interrupt is for the server, which answers the requests in flight first
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, process_group=0
            )
            self._end = weakref.finalize(self, _ended, self._process)
            timer = threading.Timer(START_SECONDS, self._process.kill)
            timer.daemon = True
            timer.start()
            try:
                _exactly(self._process.stdout, HEADER.size)
            except EOFError:
                self._end()
                raise RuntimeError(f"the process of {self._command[-2]} does not start") from None
            finally:
                timer.cancel()
        return self._process


def _answers(
    process: subprocess.Popen[bytes], arguments: Any, content: bytes, most_bytes: int
) -> Generator[tuple[Any, bytes], None, None]:
    assert process.stdin is not None
    assert process.stdout is not None
    limited_worker.write_frame(_binary(process.stdin), arguments, content)
    process.stdin.flush()
    while True:
        values, size = HEADER.unpack(_exactly(process.stdout, HEADER.size))
        if not values:
            return
        # a process that hostile files have taken over must not fill this one's memory
        if values > MOST_VALUE_BYTES or size > most_bytes:
            process.kill()
            raise EOFError
        yield json.loads(_exactly(process.stdout, values)), _exactly(process.stdout, size)


def _binary(stream: Any) -> BinaryIO:
    found: BinaryIO = stream
    return found


def _exactly(stream: Any, size: int) -> bytes:
    found: bytes = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _overdue(process: subprocess.Popen[bytes], overdue: threading.Event) -> None:
    overdue.set()
    process.kill()


def _nothing() -> None:
    """End nothing."""


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        # what could not be written to it any more
        with contextlib.suppress(BrokenPipeError):
            stream.close()
