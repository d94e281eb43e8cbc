"""Sends a server what nobody should send, and holds it to: 200 or a 4xx that names a field, alive, memory flat, others unharmed.

`python -m encoder_bench fuzz ARTIFACT [--count N]`. Beside the fuzzing clients one sends the cases of
the artifact's reference all the time, and compares each answer with the recorded one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec

from encoder_bench import server
from encoder_bench.fuzz_bodies import Body, Maker, Shape
from encoder_plugins import catalog
from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact import reference as references
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.families.vision.cases import picture
from encoder_plugins.inputs.tests import pdfs
from encoder_plugins.parity import verdict as comparison
from encoder_plugins.parity.plan import Batch
from encoder_plugins.parity.protocol import Parity
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.serving import limits

CLIENTS = 8
MIB = 1 << 20
# requests of different lengths raise the high-water mark of allocators first, and fill caches, of which pixels need thousands of requests
SETTLED_SHARE = 0.5
# the most that processes together may have grown after that: an answer is some KiB, a leak of each would be far above
GROWTH_BYTES = 256 * MIB
# cases that the sentinel sends; the longest of a reference take a CPU seconds
SENTINEL_CASES = 16


@dataclass
class Report:
    """What came of it."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    sentinel: int = 0
    settled_bytes: int = 0
    last_bytes: int = 0
    alive: bool = False
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        """How many bodies were posted."""
        return sum(self.statuses.values())

    @property
    def growth(self) -> int:
        """Bytes by which the server's memory grew after it had settled."""
        return self.last_bytes - self.settled_bytes

    def findings(self) -> list[str]:
        """Return what must not be."""
        found = list(self.wrong)
        if not self.alive:
            found.append("the server is dead")
        if self.growth > GROWTH_BYTES:
            found.append(f"memory grew by {self.growth / MIB:.0f} MiB; the bound is {GROWTH_BYTES / MIB:.0f}")
        if not self.sentinel:
            found.append("the sentinel got no answer")
        return found

    def render(self) -> str:
        """Return the report as a table and some lines."""
        codes = sorted({status for _, status in self.statuses})
        lines = [f"| kind | {' | '.join(map(str, codes))} |", f"|---|{'---|' * len(codes)}"]
        for kind in dict.fromkeys(kind for kind, _ in self.statuses):
            lines.append(f"| {kind} | {' | '.join(str(self.statuses[kind, code]) for code in codes)} |")
        lines += [
            "",
            f"{self.sent} requests in {self.seconds:.0f} s; {len(self.fields)} different fields were named",
            f"the sentinel got {self.sentinel} right answers",
            f"memory {self.settled_bytes / MIB:.0f} MiB when settled, {self.last_bytes / MIB:.0f} MiB at the end",
        ]
        return "\n".join([*lines, *(f"WRONG: {finding}" for finding in self.findings()[:20])])


# bodies for the routes that several plugins have, by their schema
DOCUMENTS = ["A man is eating.", "A cheetah chases its prey.", "Bread is baked from flour."]
FURTHER: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "openai": (
        {"input": "a text"},
        {"input": DOCUMENTS, "encoding_format": "base64"},
    ),
    "rerank": (
        {"query": "Which animal runs fast?", "documents": DOCUMENTS, "top_n": 2},
        {"query": "bread", "documents": [{"text": text} for text in DOCUMENTS], "return_documents": True},
    ),
    "score": (
        {"text_1": "bread", "text_2": DOCUMENTS},
        {"queries": DOCUMENTS, "documents": DOCUMENTS[::-1]},
    ),
}
# further requests of ``/pooling`` where a plugin ranks documents
RANKING: Sequence[Mapping[str, Any]] = (
    {"queries": ["bread", "animal"], "documents": DOCUMENTS, "top_k": 2},
    {"texts": DOCUMENTS, "is_query": False, "embedding_dtype": "int8"},
    {"texts": DOCUMENTS, "is_query": True, "embedding_dtype": "ubinary", "encoding": "base64"},
    {"text": DOCUMENTS[0], "input_type": "document", "embedding_dtype": "bfloat16", "encoding": "bytes"},
)

_PDF = base64.b64encode(
    pdfs.pdf((b"0 0 210 297", b"0 0 60 40"), (pdfs.text("one"), pdfs.text("two")), page=pdfs.FONT)
).decode()
_IMAGE = picture(60, 40, 1)
# and where its documents are images, too
VISUAL: Sequence[Mapping[str, Any]] = (
    {"pdf": _PDF, "dpi": 40, "encoding": "base64"},
    {"pdf": _PDF, "pages": "2,1", "dpi": 72},
    {"images": [_IMAGE, picture(300, 20, 2)], "embedding_dtype": "float16", "encoding": "bytes"},
    {"inputs": ["a text", {"image": _IMAGE}]},
    {"inputs": [{"pdf": _PDF, "pages": "2", "dpi": 40}, "a text", {"pdf": _PDF, "dpi": 40}, {"image": _IMAGE}]},
    {"query": "bread", "documents": ["bread", {"image": _IMAGE}]},
    {"queries": ["bread", "one"], "documents": ["bread", {"pdf": _PDF, "pages": "2,1", "dpi": 40}, {"image": _IMAGE}]},
    {"query": "one", "documents": [{"pdf": _PDF, "dpi": 40}, {"pdf": _PDF, "pages": "1", "dpi": 40}], "top_k": 2},
)
# of the routes by which images and pages are ranked, too, by their schema
VISUAL_FURTHER: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "rerank": (
        {
            "query": "bread",
            "documents": ["bread", {"image": _IMAGE}, {"pdf": _PDF, "pages": "2", "dpi": 40}],
            "top_n": 2,
        },
        {"query": "one", "documents": [{"pdf": _PDF, "dpi": 40}]},
    ),
}


# a name that no resolver has (RFC 2606): fetching from it ends at once, and is refused
MEDIA_HOST = "files.invalid"
# files by their addresses, among others
ADDRESSED: Sequence[Mapping[str, Any]] = (
    {"pdf": f"https://{MEDIA_HOST}/a.pdf", "pages": "1-2", "dpi": 72},
    {"images": [_IMAGE, f"https://{MEDIA_HOST}/a.png"], "encoding": "base64"},
    {"query": "bread", "documents": ["bread", {"image": f"https://{MEDIA_HOST}:443/a.png"}]},
    {"query": "bread", "documents": ["bread", {"pdf": f"https://{MEDIA_HOST}/a.pdf", "pages": "1-2"}]},
    {"inputs": ["bread", {"pdf": f"https://{MEDIA_HOST}/a.pdf", "dpi": 40}]},
)
LINKED = "Tim Cook leads Apple in Cupertino."
LABELS = ("person", "company", "city")


def of_label_set(name: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the data of requests for a label set: all of it, and by some of its ids."""
    candidates = [list(ids[:2]), list(ids[1:])]
    return [
        {"text": LINKED, "label_set": name},
        {"texts": [LINKED, "Bread."], "label_set": name, "candidates_per_text": candidates, "threshold": 0.3},
    ]


def of_label_vectors(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the data of requests with vectors, as the server gave them, for all of their labels, and for some."""
    labels = list(given["vectors"])
    some = {**given, "vectors": {name: given["vectors"][name] for name in labels[:1]}}
    candidates = [[{"id": f"Q{number}", "label": name} for number, name in enumerate(labels)]]
    return [
        {"text": LINKED, "labels": labels, "label_vectors": given},
        {"text": LINKED, "labels": labels, "label_vectors": some, "threshold": 0.3},
        {"texts": [LINKED], "candidates_per_text": candidates, "label_vectors": given},
        {"encode": "labels", "labels": labels},
    ]


def maker(
    reference: Reference, parity: Parity, seed: int, body_bytes: int, further: Sequence[Mapping[str, Any]] = ()
) -> Maker:
    """Return what makes bodies for the routes of the plugin of a recorded reference.

    Args:
        reference: Its cases are requests that are answered.
        parity: What makes bodies of them.
        seed: The same one makes the same bodies.
        body_bytes: The largest body that is taken.
        further: The data of further requests of ``/pooling``, which only one artifact answers.
    """
    plugin = catalog.get(reference.plugin)
    schemas = resolve(plugin.processor).schemas
    short = sorted(reference.cases, key=lambda case: len(json.dumps(case)))[: len(reference.cases) * 2 // 3 + 1]
    good: list[Mapping[str, Any]] = [
        parity.body([case], parity.variants()[0]) for case in short if parity.weight(case) <= 8
    ]
    if "rerank" in schemas:
        # as many as there are of the others, so that each is chosen as often
        good += [{"data": data} for data in RANKING] * max(1, len(good) // len(RANKING))
    schema = schema_of(schemas["pooling"].request)
    visual = "pdf" in schema["properties"]["data"]["properties"]
    if visual:
        further = [*further, *VISUAL, *ADDRESSED]
    if further:
        good += [{"data": data} for data in further] * max(1, len(good) // len(further))
    shapes = [Shape("/pooling", schema, good)]
    shapes += [
        Shape(
            route.path,
            schema_of(schemas[route.schema].request),
            (*FURTHER[route.schema], *(VISUAL_FURTHER.get(route.schema, ()) if visual else ())),
        )
        for route in plugin.routes
        if route.schema in FURTHER
    ]
    return Maker(shapes, seed, body_bytes)


def schema_of(request: Any) -> dict[str, Any]:
    """Return the JSON schema of a request's type, with that of its ``data``, where it has one, in place."""
    schema = msgspec.json.schema(request)
    kinds = schema["$defs"]
    envelope = dict(kinds[schema["$ref"].rpartition("/")[2]])
    properties = dict(envelope["properties"])
    if "data" in properties:
        properties["data"] = kinds[properties["data"]["$ref"].rpartition("/")[2]]
    return {**envelope, "properties": properties, "$defs": kinds}


async def attack(at: server.Server, bodies: Iterator[Body], count: int, sentinel: Sentinel) -> Report:
    """Post all bodies, several at a time, with the sentinel beside them."""
    report = Report()
    start = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS + 2)) as session:
        watching = asyncio.create_task(sentinel.watch(session, at.url, report))

        async def client() -> None:
            for body in bodies:
                await _post(session, at, body, report)
                if not report.settled_bytes and report.sent >= count * SETTLED_SHARE:
                    report.settled_bytes = at.resident_bytes()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        sentinel.enough = True
        await watching
        report.last_bytes = at.resident_bytes()
        report.alive = at.alive and (await session.get(f"{at.url}/health")).status == 200
    report.seconds = time.monotonic() - start
    return report


async def _post(session: aiohttp.ClientSession, at: server.Server, body: Body, report: Report) -> None:
    headers = {"content-type": "application/json", **body.headers}
    try:
        async with session.post(f"{at.url}{body.path}", data=body.content, headers=headers) as response:
            status, content = response.status, await response.read()
            binary = response.content_type == "application/octet-stream"
    except aiohttp.ClientError as error:
        report.statuses[body.kind, 0] += 1
        report.wrong.append(f"{body.kind}: {type(error).__name__} for {body.content[:200]!r}")
        return
    report.statuses[body.kind, status] += 1
    problem = None if binary and status == 200 else _problem(status, content, report)
    if problem is not None:
        report.wrong.append(f"{body.kind} to {body.path}: {problem}; the body was {body.content[:300]!r}")


def _problem(status: int, content: bytes, report: Report) -> str | None:
    """Return what is wrong with an answer."""
    try:
        answer = json.loads(content)
    except ValueError:
        return f"{status} with no JSON: {content[:200]!r}"
    if status == 200:
        held = isinstance(answer, dict) and ("data" in answer or "results" in answer)
        return None if held else f"200 without data or results: {content[:200]!r}"
    if not 400 <= status < 500:
        return f"{status}: {content[:200]!r}"
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not error.get("param") or not error.get("message"):
        return f"{status} names no field: {content[:200]!r}"
    report.fields[str(error["param"])] += 1
    return None


class Sentinel:
    """A client that sends the recorded cases, and checks each answer."""

    def __init__(self, reference: Reference, parity: Parity) -> None:
        self._reference = reference
        self._parity = parity
        self._variant = parity.variants()[0]
        self._cases = sorted(reference.cases, key=lambda case: len(json.dumps(case)))[:SENTINEL_CASES]
        self.enough = False

    async def watch(self, session: aiohttp.ClientSession, url: str, report: Report) -> None:
        """Send cases until it is enough, one after the other."""
        place = 0
        while not self.enough:
            case = self._cases[place % len(self._cases)]
            place += 1
            body = self._parity.body([case], self._variant)
            async with session.post(f"{url}/pooling", json={"model": "bench", **body}) as response:
                if response.status != 200:
                    report.wrong.append(f"the sentinel got {response.status}: {(await response.text())[:200]}")
                    continue
                content = await response.read()
            batch = Batch((case,), self._variant)
            findings = comparison.examine(self._parity, self._reference, "sentinel", batch, content)
            verdict = comparison.judge(findings, self._parity.tolerances["float32"], self._reference, {})
            # one case need not measure every bound, which is what Inconclusive says of a whole check
            if verdict.result == "Failed":
                report.wrong.append(f"the sentinel's {case['id']}: {verdict.message}")
            else:
                report.sentinel += 1


def run(artifact: Path, count: int, seed: int, log: Path) -> Report:
    """Serve an artifact on the CPU, attack it, and return what came of it."""
    reference = references.read(artifact)
    plugin = catalog.get(reference.plugin)
    parity: Parity = resolve(plugin.parity)
    options = ["--allowed-media-host", MEDIA_HOST] if plugin.takes_images else []
    with server.served(artifact, log, "--accelerator", "cpu", *options) as at:
        further = _of_artifact(at, plugin, artifact) if plugin.label_sets else []
        made = maker(reference, parity, seed, limits.defaults(plugin)["body_bytes"], further)
        return asyncio.run(attack(at, made.bodies(count), count, Sentinel(reference, parity)))


def _of_artifact(at: server.Server, plugin: Plugin, artifact: Path) -> list[dict[str, Any]]:
    """Return the data of requests that hold something of the artifact: its label sets, and vectors of labels."""
    body = {"model": "bench", "data": {"encode": "labels", "labels": LABELS}}
    answer = httpx.post(f"{at.url}{plugin.routes[0].path}", json=body, timeout=60).raise_for_status().json()
    found = of_label_vectors(answer["data"]["label_vectors"])
    for name, file in label_sets.files(artifact / label_sets.FOLDER).items():
        ids = [label.id for label in islice(label_sets.read(file), 20)]
        found += of_label_set(name, ids)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("fuzz-server.log"), help="what the server says")


def main(given: argparse.Namespace) -> int:
    """Run, print the report, and return 0 where nothing is wrong."""
    report = run(given.artifact.absolute(), given.count, given.seed, given.log)
    print(report.render())
    if report.findings():
        print(f"{len(report.findings())} findings", file=sys.stderr)
        return 1
    return 0
