"""The command ``encoder-plugins``: list, doctor, prepare, record, collect, serve, parity. Parses arguments and calls; decides nothing."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.errors import PluginError, PrepareError
from encoder_plugins.serving import command as serve
from encoder_plugins.serving.limits import Limits

# commands whose modules bring the hub's client or an original library, and are imported only for them
SEPARATE = {
    "prepare": "encoder_plugins.cli.prepare",
    "record": "encoder_plugins.cli.record",
    "collect": "encoder_plugins.cli.garbage_collect",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would take vLLM's arguments for ours where the names begin alike
    separator = given.index("--") if "--" in given else len(given)
    wanted = given[0] if given else ""
    parsed = _parser(wanted).parse_args(given[:separator])
    try:
        if parsed.command == "list":
            return _list(parsed)
        if parsed.command == "doctor":
            from encoder_plugins.cli import doctor

            return doctor.run(as_json=parsed.json)
        if parsed.command in SEPARATE:
            status: int = importlib.import_module(SEPARATE[parsed.command]).run(parsed)
            return status
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
    doctor = commands.add_parser("doctor", help="say what is installed, supported and registered", allow_abbrev=False)
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    for name, text in (
        ("prepare", "turn a checkpoint into an artifact"),
        ("record", "record what the original library answers, for parity"),
        ("collect", "remove the artifacts of a volume that nobody keeps"),
    ):
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        if wanted == name:
            importlib.import_module(SEPARATE[name]).add_arguments(command)
    _add_serve(commands.add_parser("serve", help="verify an artifact and serve it; vLLM's own arguments after --"))
    _add_parity(commands.add_parser("parity", help="compare a server with the original library", allow_abbrev=False))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("--digest", help="sha256:... that the artifact must have; without it, its own manifest decides")
    parser.add_argument("--name", help="what requests call the model; by default as the folder")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--accelerator", choices=("cpu", "nvidia"), help="by default what is there")
    parser.add_argument("--dtype", help="number format; by default the plugin's own for the accelerator")
    parser.add_argument("--max-model-len", type=int, help="tokens of a text; by default the checkpoint's")
    parser.add_argument("--max-in-flight", type=int, help="requests at work; one more is answered 503")
    parser.add_argument("--engines", type=_count, help="engines on this accelerator behind the port")
    parser.add_argument("--api-servers", type=_count, help="processes of each engine that parse and answer")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", help=f"one of: {', '.join(Limits.model_fields)}"
    )
    parser.add_argument("--json", action="store_true", help="print what is started as one JSON object")
    parser.add_argument("--dry-run", action="store_true", help="print what would be started, and start nothing")


def _add_parity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("url", help="where the server listens")
    parser.add_argument("--name", help="what the server calls the model; by default what `serve` calls it")
    parser.add_argument("--dtype", help="number format of the engine; by default the plugin's for what is here")
    parser.add_argument("--thresholds", type=_object, default={}, help="JSON object: limits by metric, as strings")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the whole comparison")
    parser.add_argument("--binding", type=_object, default={}, help="JSON object that the verdict echoes")
    parser.add_argument("--termination-log", type=Path, help="also write the verdict to this file")
    parser.add_argument("--json", action="store_true", help="no change: every line is JSON, the verdict is the last")


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("not a whole number above 0")
    return int(text)


def _list(parsed: argparse.Namespace) -> int:
    found = catalog.plugins().values()
    if parsed.json:
        print(json.dumps([asdict(plugin) for plugin in found], indent=2))
    else:
        for plugin in found:
            print(f"{plugin.name}  {plugin.summary}")
    return 0


def _serve(parsed: argparse.Namespace, extra: Sequence[str]) -> int:
    # an engine has another working directory in mind than whoever typed the path
    folder = parsed.artifact.absolute()
    service = serve.Service(
        artifact=folder,
        name=parsed.name or serve.name_of(folder, serve.plugin_of(folder)),
        port=parsed.port,
        accelerator=parsed.accelerator or serve.this_accelerator(),
        dtype=parsed.dtype,
        max_model_len=parsed.max_model_len,
        limits=serve.limits_from(parsed.limit, parsed.max_in_flight),
        engines=parsed.engines,
        api_servers=parsed.api_servers,
        arguments=tuple(extra),
    )
    if parsed.dry_run or parsed.json:
        _show(serve.plan(service, os.environ, dry=True), as_json=parsed.json)
    if parsed.dry_run:
        return 0
    return serve.run(service, parsed.digest)


def _show(plan: serve.Plan, *, as_json: bool) -> None:
    if as_json:
        shown = {"commands": plan.commands, "environment": plan.environment, "tuning": asdict(plan.tuning)}
        print(json.dumps(shown), flush=True)
        return
    settings = [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    for command in plan.commands:
        print(" ".join([*settings, shlex.join(command)]))


def _parity(parsed: argparse.Namespace) -> int:
    from encoder_plugins.parity import client as parity

    folder = parsed.artifact.absolute()
    target = parity.Target(
        url=parsed.url,
        name=parsed.name or serve.name_of(folder, serve.plugin_of(folder)),
        dtype=parsed.dtype or serve.plugin_of(folder).dtype(serve.this_accelerator()),
        thresholds=parsed.thresholds,
        timeout=parsed.timeout,
        binding=parsed.binding,
    )
    return parity.report(parity.run(parsed.artifact, target), parsed.termination_log)


if __name__ == "__main__":
    sys.exit(main())
