"""The commands: `python -m encoder_node check | engines | build | up | down | status | load | kubeconfig | run`."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from encoder_node import cluster as clusters
from encoder_node import prerequisites
from encoder_node.errors import NodeError


def parser() -> argparse.ArgumentParser:
    """Returns the command line's grammar."""
    top = argparse.ArgumentParser(prog="encoder_node", description="A Kubernetes cluster to test on.")
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "say what this machine lacks; exit code 1 if anything"),
        ("engines", "install what vLLM's engines use on this machine, or say what it lacks"),
        ("build", "make what the cluster is made of"),
        ("up", "start the cluster, or verify it"),
        ("down", "end the cluster; leave nothing but caches"),
        ("status", "say how the cluster is; exit code 1 if it can't be used"),
        ("kubeconfig", "print the path of the administrator's kubeconfig"),
        ("bin", "print the folder with kubectl and helm"),
    ):
        commands.add_parser(name, help=text, description=text)
    load = commands.add_parser("load", help="put images on the node")
    load.add_argument("archives", nargs="+", type=Path, metavar="IMAGE.tar", help="image archive (OCI or docker save)")
    run = commands.add_parser("run", help="run a command on the node")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command")
    return top


def execute(cluster: clusters.Cluster, options: argparse.Namespace) -> int:
    """Does what the command line says and returns the exit code."""
    match options.command:
        case "check":
            prerequisites.ensure(clusters.missing(), install=False)
        case "engines":
            prerequisites.ensure(prerequisites.missing_for_engines(), install=True)
        case "build":
            cluster.build()
        case "up":
            cluster.up()
        case "down":
            cluster.down()
        case "status":
            status = cluster.status()
            print("\n".join(status.lines))
            return 0 if status.up else 1
        case "kubeconfig":
            print(cluster.kubeconfig())
        case "bin":
            print(cluster.bin_dir)
        case "load":
            cluster.load(options.archives)
        case "run":
            command = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
            return subprocess.run(cluster.command(command), check=False).returncode
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error is printed without a traceback."""
    options = parser().parse_args(arguments)
    # a runner whose time limit has passed sends SIGTERM: clean up as after Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return execute(clusters.detect(), options)
    except NodeError as error:
        print(f"encoder_node: {error.explain()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("encoder_node: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
