"""`encoder-plugins parity`: compares a server with the reference outputs of its artifact."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.parity import client
from encoder_plugins.serving import command, host, limits

# as for `encoder-client`
API_KEY = "ENCODER_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="the prepared directory")
    parser.add_argument("url", help="the server's address")
    parser.add_argument("--name", help="name of the model on the server (default: as `serve` names it)")
    parser.add_argument("--dtype", help="dtype of the engine; by default the plugin's for this machine's accelerator")
    parser.add_argument(
        "--quantization",
        choices=("fp8",),
        help="what the engine was started with (`serve … -- --quantization fp8`); it has bounds of its own",
    )
    parser.add_argument("--thresholds", type=_object, default={}, help="JSON object: limits by metric, as strings")
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a limit that the server was started with (`serve --limit`); no request exceeds it; may be repeated",
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the whole comparison")
    parser.add_argument("--binding", type=_object, default={}, help="JSON object that the verdict repeats")
    parser.add_argument("--termination-log", type=Path, help="also write the verdict to this file")
    parser.add_argument(
        "--json",
        action="store_true",
        help="accepted for uniformity: every line is JSON anyway, and the last one is the verdict",
    )


def _object(text: str) -> Mapping[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Compare, report the verdict, and return the exit status."""
    folder = arguments.artifact.absolute()
    plugin = catalog.get(manifest.read(folder).plugin)
    values = limits.parse(plugin, arguments.limit)
    target = client.Target(
        url=arguments.url,
        name=arguments.name or command.name_of(folder, plugin),
        dtype=arguments.dtype or plugin.dtype(host.this_accelerator()),
        quantization=arguments.quantization,
        thresholds=arguments.thresholds,
        timeout=arguments.timeout,
        binding=arguments.binding,
        limits={name: value for name, value in values.items() if value < limits.defaults(plugin)[name]},
        api_key=os.environ.get(API_KEY) or None,
    )
    return client.report(client.run(arguments.artifact, target), arguments.termination_log)
