"""The command ``encoder-plugins``: list, prepare, serve, parity. Parses arguments and calls; decides nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from encoder_plugins import catalog, serve
from encoder_plugins.errors import PluginError, PrepareError
from encoder_plugins.limits import Limits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would take vLLM's arguments for ours where the names begin alike
    separator = given.index("--") if "--" in given else len(given)
    # the client of parity and the hub's of prepare are imported only for the command that needs them
    wanted = given[0] if given else ""
    parsed = _parser(wanted).parse_args(given[:separator])
    try:
        if parsed.command == "list":
            return _list(parsed)
        if parsed.command == "prepare":
            from encoder_plugins import prepare_command

            return prepare_command.run(parsed)
        if parsed.command == "parity":
            return _parity(parsed)
        return _serve(parsed, given[separator + 1 :])
    except PrepareError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return error.exit_status
    except PluginError as error:
        print(str(error), file=sys.stderr)
        return 2


def _parser(wanted: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="encoder-plugins", description="Prepare, serve and compare encoder models.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show the plugins", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="everything that the plugins declare")
    prepare = commands.add_parser("prepare", help="turn a checkpoint into an artifact", allow_abbrev=False)
    if wanted == "prepare":
        from encoder_plugins import prepare_command

        prepare_command.add_arguments(prepare)
    _add_serve(commands.add_parser("serve", help="verify an artifact and serve it; vLLM's own arguments after --"))
    _add_parity(commands.add_parser("parity", help="compare a server with the original library", allow_abbrev=False))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("--digest", required=True, help="sha256:... that the artifact must have")
    parser.add_argument("--name", required=True, help="what requests call the model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--accelerator", choices=("cpu", "nvidia"), required=True)
    parser.add_argument("--dtype", help="number format; by default the plugin's own for the accelerator")
    parser.add_argument("--max-model-len", type=int, help="tokens of a text; by default the checkpoint's")
    parser.add_argument("--max-in-flight", type=int, help="requests at work; one more is answered 503")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", help=f"one of: {', '.join(Limits.model_fields)}"
    )


def _add_parity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("url", help="where the server listens")
    parser.add_argument("--name", required=True, help="what the server calls the model")
    parser.add_argument("--dtype", required=True, help="number format of the engine")
    parser.add_argument("--thresholds", type=_object, default={}, help="JSON object: limits by metric, as strings")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the whole comparison")
    parser.add_argument("--binding", type=_object, default={}, help="JSON object that the verdict echoes")
    parser.add_argument("--termination-log", type=Path, help="also write the verdict to this file")


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _list(parsed: argparse.Namespace) -> int:
    found = catalog.plugins().values()
    if parsed.json:
        print(json.dumps([asdict(plugin) for plugin in found], indent=2))
    else:
        for plugin in found:
            print(f"{plugin.name}  {plugin.summary}")
    return 0


def _serve(parsed: argparse.Namespace, extra: Sequence[str]) -> int:
    service = serve.Service(
        artifact=parsed.artifact,
        name=parsed.name,
        port=parsed.port,
        accelerator=parsed.accelerator,
        dtype=parsed.dtype,
        max_model_len=parsed.max_model_len,
        limits=serve.limits_from(parsed.limit, parsed.max_in_flight),
        arguments=tuple(extra),
    )
    serve.run(service, parsed.digest)
    return 0


def _parity(parsed: argparse.Namespace) -> int:
    from encoder_plugins import parity

    target = parity.Target(
        url=parsed.url,
        name=parsed.name,
        dtype=parsed.dtype,
        thresholds=parsed.thresholds,
        timeout=parsed.timeout,
        binding=parsed.binding,
    )
    return parity.report(parity.run(parsed.artifact, target), parsed.termination_log)


if __name__ == "__main__":
    sys.exit(main())
