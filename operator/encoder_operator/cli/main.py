"""Command line of the operator. `encoder-operator COMMAND --help` describes each command."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import crd
from encoder_operator.cli import generate
from encoder_operator.client.errors import ApiServerError, NotConfigured
from encoder_operator.manager import logs
from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json
from encoder_operator.validation.errors import NotAccepted
from encoder_plugins import standard_output

# the status that a shell gives a command that Ctrl-C has ended
_INTERRUPTED = 130
_UNKNOWN = "0" * 64
_UNKNOWN_DIGEST = f"sha256:{_UNKNOWN}"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return standard_output.checked(lambda: _run(argv))


def _run(argv: list[str] | None) -> int:
    parsed = build_parser().parse_args(argv)
    if parsed.command == "crd":
        return _generate(parsed)
    try:
        settings = Settings()
    except (ValidationError, SettingsError) as error:
        sys.stderr.write(f"invalid settings in the environment (ENCODER_...): {error}\n")
        return 64
    if parsed.command == "render":
        return _render(parsed, settings)
    logs.configure(settings.log_level)
    try:
        code = asyncio.run(_with_cluster(parsed, settings))
    except NotConfigured as error:
        sys.stderr.write(f"{error}\n")
        return 78
    except (KeyboardInterrupt, asyncio.CancelledError):
        # what the command had begun is undone
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED
    if parsed.command == "run":
        _exit_at_once(code)
    return code


def _exit_at_once(code: int) -> NoReturn:
    """End the process without taking the interpreter apart, which takes a busy machine seconds of the time for a shutdown."""
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _with_cluster(parsed: argparse.Namespace, settings: Settings) -> int:
    """Run a command that needs an API server."""
    match parsed.command:
        case "gc":
            return await _garbage_collect(settings)
        case "smoke-test":
            return await _smoke_test(parsed)
        case "doctor":
            return await _doctor(settings)
    from encoder_operator.manager import manager

    return await manager.run(settings)


def _json_object(text: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("it must be a JSON object")
    return found


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="encoder-operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run the operator: watch EncoderModels and reconcile them")
    commands.add_parser(
        "gc",
        help="garbage-collect artifacts: start one Job per PersistentVolumeClaim that deletes the unreferenced ones",
    )
    smoke_test = commands.add_parser(
        "smoke-test", help="create one EncoderModel, wait until it is Ready, and delete it"
    )
    smoke_test.add_argument("--namespace", required=True, help="namespace of the EncoderModel")
    smoke_test.add_argument(
        "--name", default="encoder-operator-test", help="name of the EncoderModel (default: %(default)s)"
    )
    smoke_test.add_argument(
        "--spec",
        type=_json_object,
        help="spec of the EncoderModel as JSON; without it, only the API server's validation is tested",
    )
    smoke_test.add_argument(
        "--timeout", type=float, default=900, metavar="SECONDS", help="wait so long for Ready (default: %(default)s)"
    )
    commands.add_parser("doctor", help="check permissions, the CustomResourceDefinition, storage and accelerators")
    generate = commands.add_parser(
        "crd", help="write the CustomResourceDefinition and the reference pages generated with it"
    )
    generate.add_argument(
        "--check", action="store_true", help="write nothing, and fail if a generated file is out of date"
    )
    generate.add_argument(
        "--print", action="store_true", help="print the CustomResourceDefinition instead of writing files"
    )
    generate.add_argument(
        "--root", type=Path, default=Path(), help="root of the repository (default: the current folder)"
    )
    render = commands.add_parser(
        "render", help="print the objects that the operator would apply for an EncoderModel, without a cluster"
    )
    render.add_argument("file", type=Path, help="the EncoderModel's manifest (YAML)")
    render.add_argument("--digest", default=_UNKNOWN_DIGEST, help="digest of the artifact")
    render.add_argument("--reference", default=_UNKNOWN_DIGEST, help="digest of the artifact's reference outputs")
    render.add_argument(
        "--inputs", type=Path, help="file with the content of the ConfigMap that spec.parity.inputs names"
    )
    render.add_argument(
        "--one-node",
        action="store_true",
        help="treat the PersistentVolumeClaim that storage.claimName names as ReadWriteOnce",
    )
    return parser


async def _garbage_collect(settings: Settings) -> int:
    from encoder_operator.cli import garbage_collect
    from encoder_operator.client.client import Client

    client = Client()
    try:
        return await garbage_collect.run(client, settings, datetime.now(UTC))
    except ApiServerError as error:
        # the CronJob retries; no Job was started from an incomplete list
        sys.stderr.write(f"garbage collection did not start: {error}\n")
        return 1
    finally:
        await client.close()


async def _smoke_test(parsed: argparse.Namespace) -> int:
    from encoder_operator.cli import smoke_test
    from encoder_operator.client.client import Client

    task = asyncio.current_task()
    assert task is not None
    # the end of its pod, too, must not leave the EncoderModel behind
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    client = Client()
    try:
        return await smoke_test.run(client, parsed.namespace, parsed.name, parsed.spec, parsed.timeout)
    finally:
        await client.close()


async def _doctor(settings: Settings) -> int:
    from encoder_operator.cli import doctor
    from encoder_operator.client.client import Client

    client, wrong = Client(), 0
    try:
        async for finding in doctor.run_checks(client, settings):
            print(finding.line())
            wrong += finding.level == "wrong"
    except ApiServerError as error:
        sys.stderr.write(f"the checks did not end: {error}\n")
        return 1
    finally:
        await client.close()
    return 1 if wrong else 0


def _generate(parsed: argparse.Namespace) -> int:
    if parsed.print:
        print(crd.to_yaml(), end="")
        return 0
    stale = {path: text for path, text in generate.files().items() if _read(parsed.root / path) != text}
    for path, text in stale.items():
        if parsed.check:
            sys.stderr.write(f"{path} is out of date: run `make generate`\n")
        else:
            (parsed.root / path).parent.mkdir(parents=True, exist_ok=True)
            (parsed.root / path).write_text(text)
    return 1 if stale and parsed.check else 0


class _ForKubectl(yaml.SafeDumper):
    """Quotes strings that kubectl, but not PyYAML, reads as numbers: `1e3` may be a hash, or the value of a variable."""


_ForKubectl.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+)$"),
    list("-+.0123456789"),
)


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _render(parsed: argparse.Namespace, settings: Settings) -> int:
    from encoder_operator.cli import render

    try:
        inputs = hashlib.sha256(parsed.inputs.read_bytes()).hexdigest() if parsed.inputs else _UNKNOWN
        documents = _documents(yaml.safe_load_all(parsed.file.read_text()))
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
        return 66
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{parsed.file}: invalid YAML: {error}\n")
        return 65
    known = render.ClusterFacts(
        digest=parsed.digest, reference=parsed.reference, inputs=inputs, one_node=parsed.one_node
    )
    separator = ""
    for document in documents:
        if wrong := _manifest_error(document):
            sys.stderr.write(f"{parsed.file}: {wrong}\n")
            return 65
        try:
            found = render.render_children(document, settings, known)
        except NotAccepted as error:
            sys.stderr.write(f"{document['metadata']['name']}: {error.reason}: {error.message}\n")
            return 65
        # the round trip through JSON writes repeated parts out instead of as YAML anchors
        plain = json.loads(json.dumps(found))
        text = yaml.dump_all(plain, Dumper=_ForKubectl, sort_keys=False, width=120)
        print(f"{separator}{text}", end="")
        separator = "---\n"
    return 0


def _documents(found: Iterable[Any]) -> list[Any]:
    """Return the documents of a file, and those in a list such as `kubectl get encodermodels -o yaml` prints."""
    documents: list[Any] = []
    for document in found:
        if isinstance(document, dict) and document.get("kind") in ("List", f"{naming.KIND}List"):
            documents += document.get("items") or []
        else:
            documents.append(document)
    return [document for document in documents if document is not None]


def _manifest_error(document: object) -> str:
    """Return why a document is not an EncoderModel manifest, or an empty string if it is one."""
    if not isinstance(document, dict) or document.get("kind") != naming.KIND:
        return "only EncoderModels can be rendered"
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        return "metadata.name is required"
    return "" if isinstance(document.get("spec"), dict) else "spec is required"
