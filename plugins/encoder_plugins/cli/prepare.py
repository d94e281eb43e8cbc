"""`encoder-plugins prepare`: arguments in, exit status and termination message out; what `record` does alike is here, too."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from encoder_plugins import catalog, parameters
from encoder_plugins.artifact import cases as inputs
from encoder_plugins.artifact import label_sets
from encoder_plugins.errors import AuthFailed, PrepareError, SourceFileNotFound, Transient, UnknownPlugin, Unsupported
from encoder_plugins.prep import progress
from encoder_plugins.prep.checksums import sha256_of
from encoder_plugins.prep.pipeline import Prepared, prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Credentials, LabelSetSource, Request
from encoder_plugins.prep.sources import tls

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_SESSION = "AWS_SESSION_TOKEN"
# of a label set on a hub, and in an object store
_SET_SCHEMES = frozenset({"hf", "s3"})
# kubelet keeps 4 KiB of a termination message
_MESSAGE_LENGTH = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plugin", help="name of the plugin; `encoder-plugins list` prints all")
    parser.add_argument(
        "source", help="repository on a hub (org/name), s3://bucket/prefix, an http(s) URL, or a folder"
    )
    parser.add_argument("output", type=Path, help="folder of the artifact; it must be new, empty, or the same artifact")
    parser.add_argument("--revision", help="commit of the repository (40 hex), or digest of the folder (64 hex)")
    parser.add_argument(
        "--allow-mutable-revision", action="store_true", help="accept a branch or a tag, and use its current commit"
    )
    parser.add_argument(
        "--sha256", metavar="HEX", help="checksum of the tar archive, or of the checksum list, at an http(s) URL"
    )
    parser.add_argument("--endpoint", help="URL of the hub, or of the object store")
    parser.add_argument("--region", help="region of the object store")
    parser.add_argument("--token-file", type=Path, help="file with the hub's token")
    parser.add_argument(
        "--credentials-folder", type=Path, help=f"folder with the object store's {', '.join(_KEYS)} [and {_SESSION}]"
    )
    parser.add_argument(
        "--ca-file", type=Path, help="file with CA certificates (PEM) to trust in addition to the public ones"
    )
    parser.add_argument(
        "--optional-files",
        action="store_true",
        help="ignore --token-file and --ca-file if the files do not exist",
    )
    parser.add_argument(
        "--ambient-credentials",
        action="store_true",
        help="sign requests to the object store with the credentials of the environment, such as a workload identity",
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="allow weights in PyTorch's pickle format if there are no others, and convert them",
    )
    parser.add_argument(
        "--auxiliary",
        action="append",
        default=[],
        metavar="REPO@REVISION",
        help="additional repository of the same hub that the checkpoint needs, or a folder; may be repeated",
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code from the checkpoint's repository"
    )
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="parameter of the plugin; its page lists them; may be repeated",
    )
    parser.add_argument(
        "--label-set",
        action="append",
        default=[],
        metavar="NAME=FILE[@SHA256]",
        help="set of labels that requests may name: a file, or, with its checksum, an http(s) URL, a file on the hub"
        " (hf://datasets/ORG/REPO@COMMIT/PATH, or hf://ORG/REPO@COMMIT/PATH of a model's repository), or an object"
        " (s3://BUCKET/KEY); may be repeated",
    )
    parser.add_argument(
        "--inputs", type=Path, help="file with a JSON list of your own cases, recorded in addition to the built-in ones"
    )
    parser.add_argument("--inputs-sha256", metavar="HEX", help="checksum that the file of --inputs must have")
    parser.add_argument(
        "--stall-seconds",
        type=float,
        default=120.0,
        help="end the attempt after this many seconds without a byte (default: %(default)s)",
    )
    add_report_arguments(parser)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that choose how results are reported."""
    parser.add_argument("--termination-log", type=Path, help="also write the result to this file as JSON")
    parser.add_argument(
        "--json", action="store_true", help="print progress and result as lines of JSON on a terminal, too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare, say what came of it, and return the exit status."""

    def work(progress: Progress) -> Prepared:
        if arguments.ca_file is not None and _is_given(arguments.ca_file, arguments):
            tls.also(arguments.ca_file)
        return prepare(_request(arguments), progress)

    return report(arguments, work)


def report(arguments: argparse.Namespace, work: Callable[[Progress], Prepared]) -> int:
    """Do ``work``, end with one line about it, and return the exit status."""
    # the termination message is written, and the next attempt finds what is staged
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    emit = progress.to_stdout if arguments.json or not sys.stdout.isatty() else progress.to_terminal
    try:
        status, result = 0, _prepared(work(Progress(emit)))
    except PrepareError as error:
        status, result = error.exit_status, _failed(error.code, str(error))
    except KeyboardInterrupt:
        status, result = (
            Transient.exit_status,
            _failed("Interrupted", "prep was interrupted; the next attempt resumes from here"),
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


def _request(arguments: argparse.Namespace) -> Request:
    """Build the request from the command line."""
    try:
        plugin = catalog.get(arguments.plugin)
    except UnknownPlugin as error:
        raise Unsupported(str(error)) from error
    try:
        given = parameters.read(plugin, arguments.parameter)
    except ValueError as error:
        raise Unsupported(f"--parameter {error}") from error
    return Request(
        plugin=plugin,
        source=_source(arguments.source),
        output=arguments.output.absolute(),
        revision=_revision(arguments),
        allow_mutable_revision=arguments.allow_mutable_revision,
        endpoint=arguments.endpoint,
        region=arguments.region,
        token=_token(arguments),
        ambient_credentials=arguments.ambient_credentials,
        credentials=_credentials(arguments.credentials_folder),
        allow_pickle=arguments.allow_pickle,
        trust_remote_code=arguments.trust_remote_code,
        auxiliary=tuple(map(_auxiliary, arguments.auxiliary)),
        label_sets=_label_sets(arguments.label_set),
        parameters=given,
        inputs=() if arguments.inputs is None else inputs.read(arguments.inputs, arguments.inputs_sha256),
        stall_seconds=arguments.stall_seconds,
    )


def _source(text: str) -> str:
    """Return a folder's absolute path. As in transformers, a folder that exists comes before a repository of the same name."""
    relative = text in (".", "..") or text.startswith(("./", "../"))
    return str(Path(text).absolute()) if relative or ("://" not in text and Path(text).is_dir()) else text


def _auxiliary(text: str) -> Auxiliary:
    """Read `REPO@REVISION`, or a folder."""
    if (folder := _source(text)).startswith("/"):
        return Auxiliary(folder)
    source, _, revision = text.partition("@")
    return Auxiliary(source, revision or None)


def _label_sets(texts: Sequence[str]) -> tuple[LabelSetSource, ...]:
    """Read `NAME=FILE`, `NAME=FILE@SHA256` and `NAME=URL@SHA256`, sorted by name."""
    found: dict[str, LabelSetSource] = {}
    for text in texts:
        name, equals, where = text.partition("=")
        if not equals or not where:
            raise Unsupported(f"--label-set {text}: expected NAME=FILE, NAME=FILE@SHA256 or NAME=URL@SHA256")
        if name in found:
            raise Unsupported(f"--label-set {name}: is given twice")
        scheme, separator, _ = where.partition("://")
        if separator and scheme not in _SET_SCHEMES and scheme.lower() not in {"http", "https"}:
            raise Unsupported(
                f"--label-set {name}: a URL begins with http://, https://, hf:// or s3://, not {scheme}://"
            )
        pinned = re.fullmatch(r"(.+)@([0-9a-f]{64})", where, re.DOTALL)
        if pinned is None and separator:
            raise Unsupported(f"--label-set {name}: a URL needs its checksum: NAME=URL@SHA256")
        found[name] = LabelSetSource(name, *(pinned.groups() if pinned else (where, _sha256(name, Path(where)))))
    return tuple(found[name] for name in sorted(found))


def _sha256(name: str, file: Path) -> str:
    label_sets.check_file(file, name)
    try:
        return sha256_of(file)
    except OSError as error:
        raise SourceFileNotFound(f"--label-set {name}: cannot read {file}: {error.strerror}") from None


def _revision(arguments: argparse.Namespace) -> str | None:
    """Return what pins the source, by whichever name it was given."""
    if arguments.sha256 and not arguments.source.startswith(("https://", "http://")):
        raise Unsupported("--sha256 is for an http(s) address; a repository and a folder have --revision")
    if arguments.revision and arguments.source.startswith(("https://", "http://", "s3://")):
        raise Unsupported(
            "--revision is for a repository or a folder; an http(s) address has --sha256, a bucket neither"
        )
    pinned: str | None = arguments.sha256 or arguments.revision
    return pinned


def _credentials(folder: Path | None) -> Credentials | None:
    """Read an object store's credentials, one file for each, as a mounted Secret has them."""
    if folder is None:
        return None
    access_key, secret_key = (_secret(folder / name) for name in _KEYS)
    session = folder / _SESSION
    return Credentials(access_key, secret_key, _secret(session) if session.exists() else None)


def _token(arguments: argparse.Namespace) -> str | None:
    file = arguments.token_file
    return None if file is None or not _is_given(file, arguments) else _secret(file)


def _is_given(file: Path, arguments: argparse.Namespace) -> bool:
    """Return whether a file must be read: one that must exist, or does."""
    return not arguments.optional_files or file.exists()


def _secret(path: Path) -> str:
    """Read a token or a key. What is none is never shown, for it may be one with a line too many."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthFailed(f"the file {path} can't be read: {type(error).__name__}") from error
    if not secret or not secret.isprintable() or " " in secret:
        raise AuthFailed(f"the file {path} does not hold one token or key")
    return secret


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
