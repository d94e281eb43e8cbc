"""The process behind ``inputs.limited_process``: it calls one function within limits. Standard library alone; run as a file.

``python -I -B limited_worker.py WORKER MEMORY_BYTES``, where ``WORKER`` is a file that defines
``answers(arguments, content)``: from a JSON value and bytes to pairs of a JSON value and bytes. Each frame on standard input is a
call; each pair is a frame on standard output, and an empty frame is the last of a call. An empty frame comes first of all, when the
process has started.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import struct
import sys
from typing import Any, BinaryIO, Final

HEADER: Final = struct.Struct(">IQ")
"""In front of each frame: the bytes of the JSON value, and of what follows it. No JSON value has 0."""

EMPTY: Final = HEADER.pack(0, 0)


def read_frame(stream: BinaryIO) -> tuple[Any, bytes] | None:
    """Return the JSON value and the bytes of a frame; None at the end of the stream."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    values, size = HEADER.unpack(head)
    text, content = stream.read(values), stream.read(size)
    return (json.loads(text), content) if len(text) == values and len(content) == size else None


def write_frame(stream: BinaryIO, values: Any, content: bytes | memoryview = b"") -> None:
    """Write a frame."""
    text = json.dumps(values).encode()
    stream.write(HEADER.pack(len(text), len(content)))
    stream.write(text)
    stream.write(content)


def main() -> None:
    """Answer calls until there are no more; the timer's signal ends the process in the midst of one."""
    worker, memory = sys.argv[1], int(sys.argv[2])
    calls, frames = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # nothing that a library prints may get between the frames
    os.dup2(2, 1)
    answers = runpy.run_path(worker)["answers"]
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # no core dumps, no files, no threads or processes
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    frames.write(EMPTY)
    frames.flush()
    while (call := read_frame(calls)) is not None:
        (seconds, arguments), content = call
        signal.setitimer(signal.ITIMER_PROF, seconds)
        for answer in answers(arguments, content):
            write_frame(frames, *answer)
            frames.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames.write(EMPTY)
        frames.flush()


if __name__ == "__main__":
    main()
