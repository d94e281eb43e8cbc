"""`python -m encoder_platform demo | images | bench-start | bench-operator`: what the Makefile's targets run."""

import argparse
import sys

from encoder_node.errors import NodeError
from encoder_platform import bench_operator, bench_start, demo, install


def _images() -> None:
    install.bring_up()


COMMANDS = {
    "demo": demo.run,
    "images": _images,
    "bench-start": bench_start.run,
    "bench-operator": bench_operator.run,
}


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m encoder_platform", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    command = COMMANDS[parser.parse_args().command]
    try:
        command()
    except NodeError as error:
        sys.exit(f"encoder_platform: {error.explain()}")


if __name__ == "__main__":
    main()
