"""`python -m encoder_plugins.serving.signals MODULE ARGUMENT...`: run a module in a process that ends on SIGTERM from the start.

In a container the engine is process 1, for which the kernel drops signals that have no handler. vLLM sets one after half a minute of
imports; a pod that is deleted before that would keep its GPU for the whole grace period.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from types import FrameType

# the status that a shell gives a process that SIGTERM has ended
ENDED = 128 + signal.SIGTERM


def end_on_sigterm() -> None:
    """End this process at once when SIGTERM comes, or if it has come since ``hold_sigterm``, until another handler is set."""
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def exit_on_sigterm() -> None:
    """End this process when SIGTERM comes, with all that it has begun to clean up, until another handler is set."""
    signal.signal(signal.SIGTERM, _exit)


def hold_sigterm() -> None:
    """Keep SIGTERM pending: to be called before the process becomes another program, which starts without a handler."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _end(number: int, frame: FrameType | None) -> None:
    # nothing has begun that would have to be finished
    os._exit(ENDED)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(ENDED)


def main() -> None:
    """Run the module that the first argument names, with the others, as if it had been started itself."""
    end_on_sigterm()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
