"""Ends an engine's process when one of the two threads that connect it with the servers has died.

vLLM watches the process of an engine, and a server whose engine has ended ends with it. It does not watch the threads: where
one raises (on a tensor that cannot be sent, say), the engine goes on computing, and no request is ever answered. Standard library
only: vLLM's entry point installs it in every process.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

# the functions of EngineCoreProc that the threads run: Python names a thread after its function
FUNCTIONS = ("process_input_sockets", "process_output_sockets")
STATUS = 70


def install() -> None:
    """Watch the threads of this process. Another call changes nothing."""
    before = threading.excepthook
    if getattr(before, "watches_engine", False):
        return

    def ended(arguments: threading.ExceptHookArgs) -> None:
        if not is_watched(arguments.thread):
            before(arguments)
            return
        traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        print("encoder: the engine cannot reach its servers any more, and ends", file=sys.stderr, flush=True)
        # neither this thread nor vLLM's shutdown, which would wait for it, can end the process in another way
        os._exit(STATUS)

    ended.watches_engine = True  # type: ignore[attr-defined]
    threading.excepthook = ended


def is_watched(thread: threading.Thread | None) -> bool:
    """Return whether a thread connects an engine with its servers."""
    return thread is not None and any(f"({function})" in thread.name for function in FUNCTIONS)
