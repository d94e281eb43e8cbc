"""`python -m encoder_bench COMMAND`: the comparisons and load tests of this package."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

COMMANDS = {
    "fuzz": "send a server what nobody should send",
    "gliner": "every way to serve a GLiNER checkpoint, in one table",
    "gliner2": "GLiNER2 by the library and by ours, in one table",
    "retrieval": "every way to serve a retriever's checkpoint, in one table",
    "visual": "visual retrieval by the library and by ours, in one table",
    "linking": "entity linking by the library and by ours, in one table",
    "memory": "what long documents take of a GPU's memory",
    "unrecorded": "build and prepare a checkpoint at a true shape, for the others to measure",
    "capacity": "the raw measurements that `encoder-plugins size` is computed from",
    "scale": "what several GPUs of one host serve",
    "pooling": "sentence embeddings on the CPU against sentence-transformers",
    "step": "what a step of few texts takes by part, and with and without CUDA graphs",
    "device": "what full batches take on the device, by kind of kernel",
    "interference": "how long short requests wait beside large ones",
}


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m encoder_bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == wanted:
            importlib.import_module(f"encoder_bench.{name}").add_arguments(command)
    given = parser.parse_args()
    # servers that were started are ended, whatever ends this
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    status: int = importlib.import_module(f"encoder_bench.{given.command}").main(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
