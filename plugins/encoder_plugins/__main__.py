"""The command ``encoder-plugins``. Finds the module of a subcommand in ``cli``, parses its arguments, and calls it."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from encoder_plugins import python_gc, standard_output
from encoder_plugins.errors import PluginError, PrepareError

# the status that a shell gives a command that Ctrl-C has ended
INTERRUPTED = 130

# module of `cli` and help by subcommand; only the module of the subcommand that runs is imported
COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("list_plugins", "show the plugins"),
    "doctor": ("doctor", "show what is installed, supported and registered"),
    "prepare": ("prepare", "turn a checkpoint into an artifact"),
    "record": ("record", "record the original library's reference outputs, for parity"),
    "collect": ("garbage_collect", "remove the artifacts of a volume that are not kept"),
    "serve": ("serve", "verify an artifact and serve it; vLLM's own arguments after --"),
    "parity": ("parity", "compare a server with the original library"),
    "size": ("size", "show what one GPU serves, and how many GPUs a load needs"),
    "new": ("new", "write the folder of a new plugin (in a checkout)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    python_gc.raise_threshold()
    return standard_output.checked(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would take vLLM's arguments for ours where the names begin alike
    separator = given.index("--") if "--" in given else len(given)
    parsed = build_parser(given[0] if given else "").parse_args(given[:separator])
    parsed.extra = tuple(given[separator + 1 :])
    try:
        status: int = _module(parsed.command).run(parsed)
        return status
    except PrepareError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return error.exit_status
    except PluginError as error:
        print(str(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of all subcommands, with the arguments of ``command``."""
    parser = argparse.ArgumentParser(prog="encoder-plugins", description="Prepare, serve and compare encoder models.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, text) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, allow_abbrev=False)
        if name == command:
            _module(name).add_arguments(subparser)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f"encoder_plugins.cli.{COMMANDS[command][0]}")


if __name__ == "__main__":
    sys.exit(main())
