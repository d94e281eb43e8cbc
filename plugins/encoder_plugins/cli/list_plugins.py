"""`encoder-plugins list`: shows the catalogue."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from encoder_plugins import catalog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print everything that the plugins declare")


def run(arguments: argparse.Namespace) -> int:
    """Print the plugins; return 0."""
    found = catalog.plugins().values()
    if arguments.json:
        print(json.dumps([asdict(plugin) for plugin in found], indent=2))
    else:
        for plugin in found:
            print(f"{plugin.name}  {plugin.summary}")
    return 0
