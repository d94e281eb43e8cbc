"""`python -m encoder_platform demo | images | bench-start | bench-operator`: what the Makefile's targets run."""

import argparse

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
    COMMANDS[parser.parse_args().command]()


if __name__ == "__main__":
    main()
