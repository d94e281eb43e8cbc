"""`encoder-plugins serve`: arguments in, an engine out. What is started is decided in ``serving.command``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path

from encoder_plugins.errors import BadArgument
from encoder_plugins.inputs import remote
from encoder_plugins.serving import command, entrypoint, host, limits
from encoder_plugins.serving.command import Service
from encoder_plugins.serving.entrypoint import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("--digest", help="sha256:... that the artifact must have; without it, its own manifest decides")
    parser.add_argument("--name", help="name of the model in requests (default: the name of the folder)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--accelerator", choices=("cpu", "nvidia"), help="accelerator (default: the one of this machine)"
    )
    parser.add_argument("--dtype", help="dtype of weights and activations (default: the plugin's for the accelerator)")
    parser.add_argument(
        "--max-model-len", type=int, help="maximum number of tokens of a text (default: the checkpoint's)"
    )
    parser.add_argument("--max-in-flight", type=int, help="short for --limit in_flight=NUMBER")
    parser.add_argument("--engines", type=_count, help="number of engines on this accelerator behind the port")
    parser.add_argument("--api-servers", type=_count, help="number of API server processes of each engine")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", help="one of the limits on the plugin's page"
    )
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="NAME=FOLDER", help="a LoRA adapter that requests may name"
    )
    parser.add_argument(
        "--allowed-media-host",
        action="append",
        default=[],
        type=_host,
        metavar="HOST[:PORT]",
        help="a host from which requests may have images and PDFs fetched by https; may be repeated (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print what is started as one JSON object")
    parser.add_argument("--dry-run", action="store_true", help="print what would be started, and start nothing")


def _host(text: str) -> str:
    try:
        return remote.host_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("not a whole number above 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve, and return the exit status; a single engine takes this process's place."""
    service = service_of(arguments)
    if arguments.dry_run or arguments.json:
        _show(entrypoint.plan(service, os.environ, dry=True), as_json=arguments.json)
    if arguments.dry_run:
        return 0
    # an address of the user's own is checked by vLLM, when it listens
    if not any(argument.startswith(("--host", "--port", "--uds")) for argument in service.arguments):
        host.check_port(service.port)
    return entrypoint.run(service, arguments.digest)


def service_of(arguments: argparse.Namespace) -> Service:
    """Return the service that the arguments describe."""
    # the engine may have another working directory than the shell
    folder = arguments.artifact.absolute()
    plugin = entrypoint.plugin_of(folder)
    in_flight = [] if arguments.max_in_flight is None else [f"in_flight={arguments.max_in_flight}"]
    folders = command.adapters_from(arguments.adapter)
    if arguments.allowed_media_host and not plugin.takes_images:
        raise BadArgument(f"--allowed-media-host: {plugin.name} takes no images")
    return Service(
        artifact=folder,
        name=arguments.name or command.name_of(folder, plugin),
        port=arguments.port,
        accelerator=arguments.accelerator or host.this_accelerator(),
        limits=limits.parse(plugin, [*in_flight, *arguments.limit]),
        dtype=arguments.dtype,
        max_model_len=arguments.max_model_len,
        engines=arguments.engines,
        api_servers=arguments.api_servers,
        adapters=tuple(entrypoint.read_adapter(name, path, plugin) for name, path in folders.items()),
        media_hosts=tuple(dict.fromkeys(arguments.allowed_media_host)),
        arguments=arguments.extra,
    )


def _show(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        shown = {"commands": plan.commands, "environment": plan.environment, "tuning": asdict(plan.tuning)}
        print(json.dumps(shown), flush=True)
        return
    settings = [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    for line in plan.commands:
        print(" ".join([*settings, shlex.join(line)]))
