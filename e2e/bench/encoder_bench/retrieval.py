"""`python -m encoder_bench retrieval`: one table of the ways to serve a retriever's checkpoint, from one run on one machine.

Sides: sentence-transformers and PyLate at their fastest batch size, ours without a server, ours over HTTP, `vllm serve` with
vLLM's own class and settings, and vllm-factory 0.2.1. All get the same texts and dtype, one side after the other. Behind the texts comes what
it takes to rank documents by a query, over what it takes to encode them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from encoder_bench import arithmetic, load, retrieval_arithmetic, workload
from encoder_bench.retrieval_checkpoint import KINDS
from encoder_bench.retrieval_servers import PEERS
from encoder_bench.retrieval_sides import SIDES, Material, Row, Sides
from encoder_bench.sides import together
from encoder_plugins.artifact import manifest

DOCUMENT_TOKENS = 256
LIBRARIES = ("sentence-transformers", "pylate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "artifact", type=Path, help="prepared, by `encoder_bench unrecorded` or `encoder-plugins prepare`"
    )
    parser.add_argument("source", type=Path, help="the checkpoint that it was prepared from, for the others")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["sentence_transformers", "http", "vllm"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 256, 512, 8192], help="of each text")
    parser.add_argument("--texts", type=int, default=512, help="different ones of each length; fewer of long ones")
    parser.add_argument(
        "--clients",
        nargs="+",
        default=["1x1", "8x1", "64x1", "1x32", "8x32"],
        help="over HTTP: clients x texts a request",
    )
    parser.add_argument("--documents", type=int, default=1000, help=f"to rank, of {DOCUMENT_TOKENS} tokens; 0 for none")
    parser.add_argument(
        "--batch-sizes", nargs="+", type=int, default=[4, 16, 32, 64, 128, 256], help="of the libraries"
    )
    parser.add_argument("--repeats", type=int, default=2, help="of the libraries; the fastest counts")
    parser.add_argument("--seconds", type=float, default=3, help="of each other measurement")
    parser.add_argument("--warm", type=float, default=1, help="seconds before it")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--engines", type=int, help="of ours over HTTP; by default what `serve` decides")
    parser.add_argument("--api-servers", type=int, help="of each engine; by default what `serve` decides")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="LIBRARY=PATH",
        help="an interpreter that has a library, instead of the environment that is made from its lock",
    )
    parser.add_argument(
        "--at-once", action="store_true", help="start all sides at the same time, then measure them in turn"
    )
    parser.add_argument("--memory-share", type=float, help="of a GPU, for each engine of those that are there at once")
    parser.add_argument("--side-seconds", type=float, default=900, help="in which a side in process must be done")
    parser.add_argument("--factory-site", type=Path, help="where pip put vllm-factory==0.2.1 (--target)")
    parser.add_argument("--logs", type=Path, help="keep what each side logged here")
    parser.add_argument("--table", type=Path, help="write the table here too, as soon as a line is known")


def main(given: argparse.Namespace) -> int:
    """Run all sides, and print the table; a side that fails is a line below it."""
    given.artifact, given.source = given.artifact.absolute(), given.source.absolute()
    speed, where = arithmetic.speed(given.device, given.dtype)
    material = _material(given)
    encoder = retrieval_arithmetic.read(given.artifact / manifest.MODEL, pooled=material.kind.pooled)
    rows: list[Row] = []
    failed: list[str] = []

    def text() -> str:
        return "\n".join(
            [
                _head(given, where),
                table(with_shares(rows, encoder, speed), material.document_tokens),
                *(f"\nfailed: {line}" for line in failed),
            ]
        )

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if given.table is not None:
            given.table.write_text(f"{text()}\n", encoding="utf-8")

    with contextlib.ExitStack() as stack:
        folder = (given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        sides = Sides(given, material, folder, stack.enter_context(load.Workers(given.processes)))
        for group in [given.sides] if given.at_once else [[side] for side in given.sides]:
            with together({side: sides.open(side) for side in group}) as measures:
                for side, measure in measures.items():
                    try:
                        if isinstance(measure, Exception):
                            raise measure
                        for row in measure():
                            rows.append(row)
                            say(f"{row.side}: {row.tokens} tokens, {row.load}: {row.rate:.4g} texts/s {row.notes}")
                    except Exception as error:  # the others' numbers are worth having
                        failed.append(f"{side}: {type(error).__name__}: {error}")
                        say(failed[-1])
    print(text())
    return 1 if failed else 0


def _material(given: argparse.Namespace) -> Material:
    kind = KINDS[manifest.read(given.artifact).plugin]
    tokenizer = Tokenizer.from_file(str(given.source / "tokenizer.json"))
    lengths = [tokens for tokens in given.tokens if tokens <= kind.most_tokens]

    def texts(count: int, tokens: int) -> list[str]:
        return workload.texts_of_tokens(tokenizer, count, tokens - kind.around)

    # of long texts fewer: as many tokens as the others have
    counts = {tokens: max(8, min(given.texts, given.texts * 512 // tokens)) for tokens in lengths}
    return Material(
        kind=kind,
        texts={tokens: texts(counts[tokens], tokens) for tokens in lengths},
        documents=[] if kind.pooled else texts(given.documents, DOCUMENT_TOKENS),
        document_tokens=DOCUMENT_TOKENS,
    )


def with_shares(rows: Sequence[Row], model: retrieval_arithmetic.Encoder, speed: float) -> list[Row]:
    """Return the rows of encoded texts with their shares of what a device of so many operations a second could encode."""
    return [
        row if row.scored else dataclasses.replace(row, share=row.rate * model.operations(row.tokens) / speed)
        for row in rows
    ]


def table(rows: Sequence[Row], document_tokens: int) -> str:
    """Return the table: each line over the best library and vllm-factory's best with such texts, and over `vllm serve` under its load."""
    lines = [
        "| tokens | side | load | texts/s | tokens/s | of the best library | of vllm serve | of vllm-factory"
        " | of the arithmetic limit | notes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    encoded = [row for row in rows if not row.scored]
    for row in sorted(encoded, key=lambda row: row.tokens):
        same = [other for other in encoded if other.tokens == row.tokens]
        library = max((other.rate for other in same if other.side in LIBRARIES), default=0.0)
        vllm = next((other.rate for other in same if (other.side, other.load) == (PEERS["vllm"].name, row.load)), 0.0)
        factory = max((other.rate for other in same if other.side == PEERS["factory"].name), default=0.0)
        lines.append(
            f"| {row.tokens} | {row.side} | {row.load} | {row.rate:.4g} | {row.rate * row.tokens:.3g} | {_ratio(row, library)}"
            f" | {_ratio(row, vllm)} | {_ratio(row, factory)} | {f'{row.share:.1%}' if row.share else ''} | {row.notes} |"
        )
    if scored := [row for row in rows if row.scored]:
        lines += [
            f"\nDocuments of {document_tokens} tokens ranked by a query:\n",
            "| side | load | documents/s | of the best library | of encoding them | notes |",
            "|---|---|---|---|---|---|",
        ]
        library = max((row.rate for row in scored if row.side in LIBRARIES), default=0.0)
        for row in scored:
            same = [other for other in encoded if (other.side, other.tokens) == (row.side, row.tokens)]
            # ours: the same documents in a request of the same kind; a library has no requests
            alone = [other.rate for other in same if other.load == row.load] or [other.rate for other in same]
            lines.append(
                f"| {row.side} | {row.load} | {row.rate:.4g} | {_ratio(row, library)} | {_ratio(row, max(alone, default=0.0))}"
                f" | {row.notes} |"
            )
    return "\n".join(lines)


def _ratio(row: Row, base: float) -> str:
    return f"{row.rate / base:.2f}" if base else ""


def _head(given: argparse.Namespace, where: str) -> str:
    plugin = manifest.read(given.artifact).plugin
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    command = " ".join(sys.argv[1:])
    return f"`python -m encoder_bench {command}`\n\n{plugin}, {given.dtype}, {where}, {cores} cores, load {busy:.1f}\n"
