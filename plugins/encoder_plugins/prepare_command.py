"""`encoder-plugins prepare`: arguments in, exit status and termination message out; what `record` does alike is here, too."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from encoder_plugins import catalog, inputs, progress
from encoder_plugins.errors import AuthFailed, PrepareError, Transient, UnknownPlugin, Unsupported
from encoder_plugins.prepare import Auxiliary, Prepared, Request, prepare
from encoder_plugins.progress import Progress

# kubelet keeps 4 KiB of a termination message
_MESSAGE_LENGTH = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plugin", help="whose checkpoint it is")
    parser.add_argument("source", help="org/name on a hub, or an absolute folder")
    parser.add_argument("output", type=Path, help="the artifact's folder, which must not hold anything else")
    parser.add_argument("--revision", help="commit of the repository (40 hex), or digest of the folder (64 hex)")
    parser.add_argument("--endpoint", help="address of the hub")
    parser.add_argument("--token-file", type=Path, help="file with the hub's token")
    parser.add_argument("--allow-pickle", action="store_true", help="convert pickled weights where there are no others")
    parser.add_argument(
        "--auxiliary",
        action="append",
        default=[],
        metavar="REPO@REVISION",
        help="further repository of the same hub that the checkpoint needs, or an absolute folder; several are possible",
    )
    parser.add_argument("--inputs", type=Path, help="JSON list of your own cases, recorded beside the built-in ones")
    parser.add_argument("--inputs-sha256", metavar="HEX", help="what the file of inputs must hash to")
    parser.add_argument("--stall-seconds", type=float, default=120.0, help="give up without a byte for so long")
    add_report_arguments(parser)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say how results are told."""
    parser.add_argument("--termination-log", type=Path, help="also write the result to this file, as JSON")
    parser.add_argument("--json", action="store_true", help="progress and result as lines of JSON, on a terminal too")


def run(arguments: argparse.Namespace) -> int:
    """Prepare, say what came of it, and return the exit status."""
    return report(arguments, lambda progress: prepare(_request(arguments, _token(arguments.token_file)), progress))


def report(arguments: argparse.Namespace, work: Callable[[Progress], Prepared]) -> int:
    """Do ``work``, end with one line about it, and return the exit status."""
    # whoever ends the pod gets an answer, and the next attempt what is staged
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    emit = progress.to_stdout if arguments.json or not sys.stdout.isatty() else progress.to_terminal
    try:
        status, result = 0, _prepared(work(Progress(emit)))
    except PrepareError as error:
        status, result = error.exit_status, _failed(error.code, str(error))
    except KeyboardInterrupt:
        status, result = (
            Transient.exit_status,
            _failed("Interrupted", "prep was told to stop; the next one goes on from here"),
        )
    except OSError as error:
        status, result = Transient.exit_status, _failed(Transient.code, str(error))
    except Exception as error:
        # the process boundary: an original library may raise anything, and the operator needs one line about it
        traceback.print_exc()
        status, result = PrepareError.exit_status, _failed(PrepareError.code, f"{type(error).__name__}: {error}")
    emit(result)
    if arguments.termination_log is not None:
        _write(arguments.termination_log, result)
    return status


def _request(arguments: argparse.Namespace, token: str | None) -> Request:
    """Build the request from the command line."""
    try:
        plugin = catalog.get(arguments.plugin)
    except UnknownPlugin as error:
        raise Unsupported(str(error)) from error
    return Request(
        plugin=plugin,
        source=arguments.source,
        output=arguments.output.absolute(),
        revision=arguments.revision,
        endpoint=arguments.endpoint,
        token=token,
        allow_pickle=arguments.allow_pickle,
        auxiliary=tuple(map(_auxiliary, arguments.auxiliary)),
        inputs=() if arguments.inputs is None else inputs.read(arguments.inputs, arguments.inputs_sha256),
        stall_seconds=arguments.stall_seconds,
    )


def _auxiliary(text: str) -> Auxiliary:
    """Read `REPO@REVISION`, or a folder."""
    if text.startswith("/"):
        return Auxiliary(text)
    source, _, revision = text.partition("@")
    return Auxiliary(source, revision or None)


def _token(path: Path | None) -> str | None:
    """Read the token. What is no token is never shown, for it may be one with a line too many."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthFailed(f"the token file {path} can't be read: {type(error).__name__}") from error
    if not token or not token.isprintable() or " " in token:
        raise AuthFailed(f"the token file {path} does not hold one token")
    return token


def _prepared(prepared: Prepared) -> dict[str, object]:
    """Word a success."""
    message = f"{prepared.files} files, {prepared.bytes} bytes, {prepared.cases} reference cases"
    return {"code": "Prepared", "message": message, **asdict(prepared)}


def _failed(code: str, message: str) -> dict[str, object]:
    """Word a failure."""
    return {"code": code, "message": message[:_MESSAGE_LENGTH]}


def _write(path: Path, result: dict[str, object]) -> None:
    """Leave the result where kubelet looks for it; a log that can't be written changes nothing."""
    try:
        path.write_text(json.dumps(result))
    except OSError as error:
        print(f"{path}: {error}", file=sys.stderr)
