"""The commands of ``encoder-client``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encoder_client import bench, embeddings, entities, plots, rows
from encoder_client.client import Client
from encoder_client.context import Context
from encoder_client.errors import ArgumentError, EncoderClientError
from encoder_client.extraction import tasks
from encoder_client.server import MODELS, json_of
from encoder_client.settings import Settings

API_KEY = "ENCODER_API_KEY"
_SHOWN = 8
_THRESHOLD = 0.5
# the status that a shell gives a command that Ctrl-C has ended
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 1 for an error that is printed, 2 for wrong arguments."""
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    texts = getattr(options, "texts", None)
    # argparse ends the texts at the first option behind the URL
    if isinstance(texts, list) and not any(text.startswith("-") for text in rest):
        texts += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        options.run(options)
        sys.stdout.flush()
    except EncoderClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        # a file that cannot be read or written, or standard output
        print(f"error: {error}", file=sys.stderr)
        _drop_unwritten()
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _drop_unwritten() -> None:
    """Keep the interpreter, which flushes standard output when it ends, from printing a traceback about a full disk or a closed pipe."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="encoder-client", description="Call an encoder server.", epilog=f"An API key is read from {API_KEY}."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, about in (
        ("ask", _run_request, "send texts, and print the answer"),
        ("bench", _run_bench, "measure latencies, and print percentiles and a histogram"),
        ("models", _run_models, "print the model, the plugin and the limits of a server"),
    ):
        command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        command.set_defaults(run=run)
        command.add_argument("url", metavar="URL", help="where the server listens")
        command.add_argument("--model", metavar="NAME", help="what the server calls the model")
        command.add_argument("--lora", metavar="NAME", help="a LoRA adapter")
        command.add_argument("--ca", metavar="FILE", help="certificate authorities that replace the default ones")
        command.add_argument(
            "--timeout", type=float, default=120.0, metavar="SECONDS", help="wait so long for each answer"
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        if name != "bench":
            command.add_argument(
                "--retry",
                type=float,
                default=10.0,
                metavar="SECONDS",
                help="wait so long for a server that is busy or starting (10)",
            )
        if name == "ask":
            _add_request_options(command)
        elif name == "bench":
            _add_bench_options(command)
    return parser


def _add_request_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "texts", nargs="*", metavar="TEXT", help="a text; without any, each line of standard input is one"
    )
    command.add_argument("--label", action="append", metavar="LABEL", help="entities: a label; repeat for several")
    command.add_argument("--threshold", type=float, help="entities: the least probability, 0 to 1 (0.5)")
    command.add_argument("--query", metavar="TEXT", help="rank the texts by this query")
    command.add_argument("--as-query", action="store_true", help="vectors, rows: the texts are queries, not documents")


def _add_bench_options(command: argparse.ArgumentParser) -> None:
    default = bench.Load()
    command.add_argument(
        "--requests", type=int, default=default.requests, help=f"measured requests ({default.requests})"
    )
    command.add_argument(
        "--warm", type=int, default=default.warm, help=f"requests before the measured ones ({default.warm})"
    )
    command.add_argument("--clients", type=int, default=default.clients, help=f"requests in flight ({default.clients})")
    command.add_argument("--texts", type=int, default=default.texts, help=f"texts of a request ({default.texts})")
    command.add_argument("--words", type=int, default=default.words, help=f"words of a text ({default.words})")
    command.add_argument("--label", action="append", metavar="LABEL", help="entities: a label; repeat for several")
    command.add_argument("--as-query", action="store_true", help="vectors, rows: the texts are queries, not documents")
    command.add_argument("--svg", type=Path, metavar="FILE", help="also draw the histogram")


def _settings(options: argparse.Namespace, **more: Any) -> Settings:
    return Settings(
        url=options.url,
        model=options.model,
        lora=options.lora,
        ca=options.ca,
        timeout=options.timeout,
        api_key=os.environ.get(API_KEY),
        **more,
    )


def _run_request(options: argparse.Namespace) -> None:
    texts = options.texts or [line.rstrip("\n") for line in sys.stdin]
    if not texts:
        raise ArgumentError("there is no text", param="TEXT")
    with Client(_settings(options, retry_seconds=options.retry)) as client:
        server = client.server()
        context = Context(server=server, settings=client.settings)
        has = server.fields_for(labels=bool(options.label))
        of_entities = not has.isdisjoint({"labels", "schema"})
        _check_options(options, of_entities=of_entities)
        threshold = _THRESHOLD if options.threshold is None else options.threshold
        if options.query is not None:
            ranking = client.run(rows.rank(context, options.query, texts, return_documents=True))
            _print(options, ranking, [f"{found['score']:9.4f}  {found['text']}" for found in ranking])
        elif "labels" in has:
            if not options.label:
                raise ArgumentError("entities need a label", param="--label")
            results = client.run(entities.inference(context, texts, options.label, threshold=threshold))
            for text, found in zip(texts, results, strict=True):
                lines = [f"{each['score']:6.3f}  {each['label']:16} {each['text']}" for each in found]
                _print(options, {"text": text, "entities": found}, lines)
        elif "schema" in has:
            if not options.label:
                raise ArgumentError("entities need a label", param="--label")
            plan = tasks.batch_extract_entities(
                context, texts, options.label, threshold=threshold, include_confidence=True
            )
            for text, answer in zip(texts, client.run(plan), strict=True):
                lines = [
                    f"{each['confidence']:6.3f}  {label:16} {each['text']}"
                    for label, values in answer["entities"].items()
                    for each in values
                ]
                _print(options, {"text": text, **answer}, lines)
        else:
            family: Any = rows if "pool_factor" in has else embeddings
            encode = family.encode_query if options.as_query else family.encode_document
            for text, array in zip(texts, client.run(encode(context, texts)), strict=True):
                beginning = " ".join(f"{number:.4f}" for number in array.ravel()[:_SHOWN])
                shape = "x".join(map(str, array.shape))
                _print(options, {"text": text, "embedding": array.tolist()}, [f"{shape}  {beginning} ...  {text}"])


def _check_options(options: argparse.Namespace, *, of_entities: bool) -> None:
    """Refuse the options that an answer would not depend on.

    Raises:
        ArgumentError: One of them is there; ``param`` is its name.
    """
    if options.query is not None:
        given = {"--label": options.label, "--threshold": options.threshold, "--as-query": options.as_query or None}
        reason = "texts that are ranked by a query have none"
    elif of_entities:
        given, reason = (
            {"--as-query": options.as_query or None},
            "the server finds entities, in texts that are no queries",
        )
    else:
        given = {"--label": options.label, "--threshold": options.threshold}
        reason = "the server finds no entities: it answers vectors or rows"
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(reason, param=name)


def _print(options: argparse.Namespace, value: Any, lines: Sequence[str]) -> None:
    if options.json:
        print(json.dumps(value, ensure_ascii=False))
    else:
        for line in lines:
            print(line)


def _run_bench(options: argparse.Namespace) -> None:
    load = bench.Load(
        requests=options.requests,
        warm=options.warm,
        clients=options.clients,
        texts=options.texts,
        words=options.words,
        labels=options.label,
        query=options.as_query,
    )
    settings = _settings(options, concurrency=load.clients, retry_seconds=0.0)
    measured = asyncio.run(bench.measure(settings, load))
    print(json.dumps(measured.summary()) if options.json else plots.text(measured))
    if options.svg is not None:
        title = f"{settings.shown_url()}: {load.clients} clients, {load.texts} texts of {load.words} words"
        options.svg.write_text(plots.svg(measured, title), encoding="utf-8")


def _run_models(options: argparse.Namespace) -> None:
    with Client(_settings(options, retry_seconds=options.retry)) as client:
        server = client.server()
        listed = json_of(client.get(MODELS).content)
    served = listed.get("data", []) if isinstance(listed, dict) else []
    # a LoRA adapter is listed with the model that it changes
    models = [
        {"id": model["id"], "max_model_len": model.get("max_model_len")} for model in served if not model.get("parent")
    ]
    adapters = [model["id"] for model in served if model.get("parent")]
    found = {
        "models": models,
        "adapters": adapters,
        "plugin": server.plugin,
        "limits": dict(server.limits),
        "fields": sorted(server.fields or ()),
    }
    lines = [f"model   {model['id']} ({model['max_model_len']} tokens)" for model in models]
    lines += [f"adapter {name}" for name in adapters]
    lines += [f"plugin  {server.plugin}", f"fields  {' '.join(sorted(server.fields or ()))}"]
    lines += [f"limit   {name} {value}" for name, value in sorted(server.limits.items())]
    _print(options, found, lines)
