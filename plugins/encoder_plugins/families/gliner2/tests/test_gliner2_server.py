"""The whole way over HTTP: prepare, serve, and the library's own answers. One real server."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from encoder_checkpoints import gliner2 as builder
from encoder_checkpoints.answer_cache import library_answer
from encoder_checkpoints.original import original
from encoder_client import GLiNER2
from encoder_client.tests import documented
from encoder_plugins import models
from encoder_plugins.families.gliner2.request import Result
from encoder_plugins.families.gliner2.tests import library
from encoder_plugins.serving.tests import servers
from encoder_plugins.serving.tests.servers import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

README = Path(models.__path__[0]) / "deberta_gliner2" / "README.md"
LIBRARY = "encoder_plugins.families.gliner2.tests.library_model"
ADAPTERS = "encoder_plugins.families.gliner2.tests.library_adapters"
# sums over other batches end in other bits
SCORE = 2.5e-5
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "short.",
    "",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。 write to ada@b.org!",
    # words in ever other company: equal sentences would have nearly equal scores
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. "
    + " ".join(random.Random(4).choices(library.WORDS, k=120))
    + ".",
]
SCHEMA: dict[str, Any] = {
    "structures": {
        "career": {
            "fields": [
                {"name": "name", "dtype": "str"},
                {"name": "employer", "description": "a company"},
                {"name": "kind", "dtype": "str", "choices": ["leader", "athlete"]},
            ]
        }
    },
    "entities": {"city": "a place", "date": {"threshold": 0.4}},
    "entity_attributes": {"size": {"labels": ["large", "small"]}},
    "relations": ["born in", "leads"],
    "classifications": [
        {"task": "topic", "labels": ["news", "sport"]},
        {"task": "tone", "labels": ["calm", "angry", "sad"], "multi_label": True},
    ],
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builder.build(tmp_path_factory.mktemp("gliner2") / "checkpoint")


@pytest.fixture(scope="module")
def server(published: Path) -> Iterator[Server]:
    artifact = servers.prepare("deberta_gliner2", published, published.parent / ("a" * 64))
    adapter = published.with_name("adapter")
    original("gliner2").call(f"{ADAPTERS}:save", published, adapter, 0, rank=8, targets=["encoder"], spread=0.05)
    with servers.running(artifact, "--adapter", f"invoices={adapter}", name="extract") as started:
        yield started


def expected(published: Path, text: str, schema: dict[str, Any], **options: Any) -> Result:
    """Return the library's answer in our shape."""
    answer = library_answer("gliner2", f"{LIBRARY}:answer", published, text, schema, **options)
    return library.answer_of(library.read(schema), answer)


def assert_same(ours: dict[str, Any], theirs: Result, schema: dict[str, Any]) -> None:
    """Compare answers value by value and in order, scores within what other sums may change."""
    wanted = json.loads(msgspec.json.encode(theirs))
    found = aligned({name: ours[name] for name in wanted}, wanted)
    assert rounded(found, None) == rounded(wanted, None), schema
    assert scores(found) == pytest.approx(scores(wanted), abs=SCORE)


def aligned(ours: Any, theirs: Any) -> Any:
    """Return our answer with neighbours in the library's order whose scores are too near for rounding to order them."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: aligned(part, theirs.get(name)) for name, part in ours.items()}
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return ours
    left, found = list(ours), []
    for wanted in theirs[: len(left)]:
        found.append(aligned(left.pop(place(left, wanted)), wanted))
    return found + left


def place(left: list[Any], wanted: Any) -> int:
    """Return where the library's next item is among ours that are left: 0, or behind some with as good as its score."""
    for number, item in enumerate(left):
        both = [part["score"] for part in (item, wanted) if isinstance(part, dict) and part.get("score") is not None]
        if len(both) < 2 or abs(both[0] - both[1]) > 2 * SCORE:
            break
        if rounded(item, None) == rounded(wanted, None):
            return number
    return 0


def rounded(value: Any, score: Any) -> Any:
    if isinstance(value, dict):
        return {name: score if name == "score" else rounded(part, score) for name, part in value.items()}
    return [rounded(part, score) for part in value] if isinstance(value, list) else value


def scores(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [
            score
            for name, part in value.items()
            for score in ([part] if name == "score" and isinstance(part, float) else scores(part))
        ]
    return [score for part in value for score in scores(part)] if isinstance(value, list) else []


@pytest.mark.parametrize("policy", [None, "flat", "allow"])
def test_answers_are_those_of_the_library(server: Server, published: Path, policy: str | None) -> None:
    results = server.answer(texts=TEXTS, schema=SCHEMA, overlap_policy=policy)["results"]
    for text, result in zip(TEXTS, results, strict=True):
        if text.endswith((".", "!", "?")):
            assert_same(result, expected(published, text, SCHEMA, overlap_policy=policy), SCHEMA)
    assert sum(len(scores(result)) for result in results) > 20
    alone = server.answer(text=TEXTS[0], schema=SCHEMA, overlap_policy=policy)
    assert_same(alone, expected(published, TEXTS[0], SCHEMA, overlap_policy=policy), SCHEMA)


def test_a_request_that_names_an_adapter_gets_what_the_library_answers_with_it(server: Server, published: Path) -> None:
    cases = [{"text": text, "schema": SCHEMA} for text in TEXTS if text.endswith((".", "!", "?"))]
    theirs = library_answer("gliner2", f"{ADAPTERS}:answers", published, published.with_name("adapter"), cases)
    for case, wanted in zip(cases, theirs, strict=True):
        body = {"model": "extract", "lora": "invoices", "data": case}
        response = httpx.post(f"{server.url}/pooling", json=body, timeout=120)
        assert response.status_code == 200, response.text
        assert_same(response.json()["data"], library.answer_of(library.read(SCHEMA), wanted), SCHEMA)
        # an adapter that changes nothing would show nothing
        assert scores(response.json()["data"]) != scores(server.answer(**case))


def test_long_texts_are_read_in_chunks_as_by_the_library(server: Server, published: Path) -> None:
    text = " ".join(TEXTS[:1] + TEXTS[3:]) * 3
    # of hundreds of overlapping spans some score alike to six digits, and which of two is first is then a matter of the processor
    name, employer, kind = SCHEMA["structures"]["career"]["fields"]
    schema = {**SCHEMA, "structures": {"career": {"fields": [name, {**employer, "threshold": 0.95}, kind]}}}
    answer = server.answer(text=text, schema=schema, overflow="chunk")
    assert answer["chunks"] > 1
    assert sum(len(record["employer"]) for record in answer["structures"]["career"]) > 50
    assert_same(answer, expected(published, text, schema, chunks=True), schema)


async def test_clients_get_their_own_answers(server: Server, published: Path) -> None:
    rng = random.Random(3)
    requests = [(library.random_text(rng, 20), library.random_schema(rng)) for _ in range(32)]
    async with httpx.AsyncClient(timeout=300) as client:

        async def answered(text: str, schema: dict[str, Any]) -> Any:
            response = await client.post(f"{server.url}/pooling", json={"data": {"text": text, "schema": schema}})
            assert response.status_code == 200, response.text
            return response.json()["data"]

        together = await asyncio.gather(*(answered(text, schema) for text, schema in requests))
    for (text, schema), found in zip(requests, together, strict=True):
        assert_same(found, expected(published, text, schema), schema)


METHODS: dict[str, Any] = {
    "extract": SCHEMA,
    "extract_entities": {"city": "a place", "date": {"dtype": "str", "threshold": 0.3}, "none": {"threshold": 1.0}},
    "classify_text": {"topic": ["news", "sport"], "tone": {"labels": ["calm", "angry", "sad"], "multi_label": True}},
    "extract_json": {"career": ["name::str", "employer::a company", "kind::[leader|athlete]", "at::list::[a|b]"]},
    "extract_relations": ["born in", "leads"],
}
FLAGS = ("include_confidence", "include_spans")


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_the_python_client_returns_what_the_library_returns(
    server: Server, published: Path, flags: tuple[bool, bool]
) -> None:
    # many words that differ: equal ones would have nearly equal scores, whose order rounding decides
    rng = random.Random(9)
    short, long = (
        [TEXTS[0], library.random_text(rng, 30)],
        " ".join(rng.choices(TEXTS[0].split() + TEXTS[4].split()[:14], k=450)) + ".",
    )
    compared = 0
    with GLiNER2(server.url) as model:
        for method in METHODS if flags[0] == flags[1] else ["extract"]:
            calls = {method: short[0], f"batch_{method}": short, f"{method}_long": long, f"batch_{method}_long": short}
            for name, texts in calls.items():
                options = dict(zip(FLAGS, flags, strict=True)) | {"threshold": 0.4}
                oracle = f"{LIBRARY}:called"
                theirs = library_answer("gliner2", oracle, published, name, texts, METHODS[method], **options)
                compared += same(getattr(model, name)(texts, METHODS[method], **options), theirs)
    assert compared > 60


def same(ours: Any, theirs: Any) -> int:
    """Compare answers in the library's shape; return the number of texts and numbers in them."""
    if isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=SCORE)
    elif isinstance(theirs, dict):
        if theirs.get("entities") == {}:
            # a text in which the library predicts no entities has none of the keys
            assert not any(ours["entities"].values())
            theirs = {**theirs, "entities": ours["entities"]}
        assert set(ours) == set(theirs)
        return sum(same(ours[key], theirs[key]) for key in theirs)
    elif isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs)
        return sum(same(mine, other) for mine, other in zip(ours, theirs, strict=True))
    else:
        assert ours == theirs
    return 1


def test_validators_that_take_too_long_are_refused_and_the_server_goes_on(server: Server) -> None:
    def kept(pattern: str) -> Any:
        return {"word": {"threshold": 0.0, "validators": [{"pattern": pattern, "mode": "partial"}]}}

    text = "a" * 60 + " met Ada."
    assert server.refusal(text=text, entities=kept("(a|aa)+b"))["param"] == "data.entities.word.validators[0].pattern"
    assert server.refusal(text=text, entities=kept("("))["param"] == "data.entities.word.validators[0].pattern"
    found = server.answer(text=text, entities=kept("^ada"), overlap_policy="allow")["entities"]["word"]
    assert {mention["text"] for mention in found} == {"Ada", "Ada."}


async def test_the_examples_of_the_pages_run(server: Server) -> None:
    variables = await documented.run("extract", server.url, README)
    assert len(variables["found"]) == 10


def test_refusals_name_the_field_and_the_server_goes_on(server: Server) -> None:
    before = server.answer(text=TEXTS[0], schema=SCHEMA)
    bad = {"structures": {"invoice": {"fields": [{"name": "a"}, {"name": "b", "choices": ["x", "X"]}]}}}
    assert server.refusal(text="a", schema=bad)["param"] == "data.schema.structures.invoice.fields[1].choices"
    assert server.refusal(text="a", entities=["[SEP_TEXT]"])["param"] == "data.entities.[SEP_TEXT]"
    assert server.refusal(text="a", entities=["p"], threshold=2)["param"] == "data.threshold"
    assert "the model takes" in server.refusal(text="word " * 30_000, entities=["p"])["message"]
    assert server.refusal(text="a", entities={"p": {"dtype": 3}})["param"] == "data.entities.p.dtype"
    again = server.answer(text=TEXTS[0], schema=SCHEMA)
    assert rounded(again, None) == rounded(before, None)
    assert scores(again) == pytest.approx(scores(before), abs=SCORE)


def test_the_example_turns_invoices_into_records(server: Server) -> None:
    folder = Path(__file__).parents[5] / "examples" / "invoices"
    files = sorted(folder.glob("*.txt"))
    command = [sys.executable, str(folder / "extract.py"), server.url, *map(str, files), "--least", "0.6"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    assert {record["file"] for record in records} <= {file.name for file in files}
    data = {"texts": [file.read_text(encoding="utf-8") for file in files], "structures": example_structures(folder)}
    results = server.answer(**data, overflow="chunk")["results"]
    assert len(records) == sum(len(result["structures"]["invoice"]) for result in results)
    assert all(
        list(record) == ["file", "number", "supplier", "customer", "date", "total", "kind"] for record in records
    )


def example_structures(folder: Path) -> Any:
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile((folder / "extract.py").read_text(), "extract.py", "exec"), namespace)
    return namespace["STRUCTURES"]
