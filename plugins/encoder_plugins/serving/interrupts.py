"""Ends a server with several API servers at once when a second SIGINT (Ctrl-C) comes.

vLLM's first process ignores it, and gives its engine more than a minute to finish; the API servers alone may not even get it, as from
`docker run`, which passes it to the first process only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time

from encoder_plugins.serving.graceful_shutdown import END_NOW

# vLLM's names of the processes that answer clients
API_SERVERS = "ApiServer"
# seconds for API servers to answer that they were stopped
ANSWER_SECONDS = 5.0


def end_at_second_interrupt() -> None:
    """Watch the signals of this process from now on, whichever handlers it sets."""
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    # closed with the process
    signal.set_wakeup_fd(sending.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiving,), daemon=True, name="interrupts").start()


def _watch(receiving: socket.socket) -> None:
    count = 0
    while count < 2:
        count += receiving.recv(64).count(signal.SIGINT)
    _end()


def _end() -> None:
    """Kill what computes, and have API servers answer; then this process ends by itself, as it does after one SIGINT."""
    from vllm.utils.system_utils import kill_process_tree

    servers = []
    for child in multiprocessing.active_children():
        if child.pid is None:
            continue
        if child.name.startswith(API_SERVERS):
            servers.append(child)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, END_NOW)
        else:
            kill_process_tree(child.pid)
    end = time.monotonic() + ANSWER_SECONDS
    for server in servers:
        server.join(max(0.0, end - time.monotonic()))
        server.kill()
