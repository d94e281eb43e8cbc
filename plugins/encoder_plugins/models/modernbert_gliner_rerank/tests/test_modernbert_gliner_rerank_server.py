"""A real server of the plugin: what clients get at the same time is what the library gives each of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from encoder_client import GLiNER, InvalidRequestError
from encoder_client.tests import documented
from encoder_plugins.families.gliner.tests.library import Library, built
from encoder_plugins.serving.tests import servers
from encoder_plugins.serving.tests.servers import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PLUGIN = "modernbert_gliner_rerank"
LINKER = "deberta_gliner_linker"
README = Path(__file__).parents[1] / "README.md"
EXAMPLE = Path(__file__).parents[5] / "examples" / "catalogue"
# a label set that the plugin's page names
NAMES = """\
{"id": "Q312", "label": "Apple: American technology company"}
{"id": "Q89", "label": "apple: fruit"}
"""
LABELS = ["person", "company", "city", "date of birth", "sports team", "country", "river"]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 5,
    " \n",
]
# sums over other batches end in other bits: a score this near to the threshold may be on either side
SCORE = 2.5e-5
Entities = list[dict[str, Any]]


@dataclass(frozen=True)
class Served:
    """A server, and the library on the checkpoint that it serves."""

    server: Server
    library: Library


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the default limits."""
    folder = tmp_path_factory.mktemp(PLUGIN)
    library = built(PLUGIN, folder / "checkpoint", for_prep=True)
    artifact = servers.prepare(PLUGIN, library.folder, folder / ("a" * 64))
    with servers.running(artifact, name="rerank") as server:
        yield Served(server, library)


def same(ours: Entities, theirs: Entities) -> None:
    """Compare entities one by one and in order."""
    assert [{**entity, "score": 0} for entity in ours] == [{**entity, "score": 0} for entity in theirs]
    assert [entity["score"] for entity in ours] == pytest.approx([entity["score"] for entity in theirs], abs=SCORE)


async def test_clients_at_the_same_time_get_the_librarys_answers(served: Served) -> None:
    requests: list[dict[str, Any]] = [
        {
            "texts": [TEXTS[number % 4], TEXTS[(number + 1) % 3]],
            "labels": LABELS[number % 3 : number % 3 + 1 + number % 5],
            "threshold": (0.2, 0.4)[number % 2],
            "flat_ner": number % 3 > 0,
            "multi_label": number % 4 > 1,
        }
        for number in range(32)
    ]
    async with httpx.AsyncClient(timeout=300) as client:
        responses = await asyncio.gather(
            *(client.post(f"{served.server.url}/pooling", json={"data": data}) for data in requests)
        )
    found = 0
    for data, response in zip(requests, responses, strict=True):
        assert response.status_code == 200, response.text
        options = {name: data[name] for name in ("threshold", "flat_ner", "multi_label")}
        for text, result in zip(data["texts"], response.json()["data"]["results"], strict=True):
            expected = served.library.entities(text, data["labels"], **options)
            same(result["entities"], expected)
            found += len(expected)
    assert found > 100


def test_candidates_spans_and_groups_of_labels(served: Served) -> None:
    candidates = [{"id": f"Q{number}", "label": label} for number, label in enumerate(LABELS)]
    spans = [[{"start": 0, "end": 8}, {"start": 15, "end": 20}, {"start": 16, "end": 20}]]
    options: dict[str, Any] = {"threshold": 0.0, "input_spans": spans, "multi_label": True}
    found = served.server.answer(text=TEXTS[0], candidates_per_text=[candidates], **options)["entities"]
    expected = served.library.entities(TEXTS[0], LABELS, **options)
    assert len(expected) > len(LABELS)
    same(found, [{**entity, "id": f"Q{LABELS.index(entity['label'])}"} for entity in expected])
    together = served.server.answer(text=TEXTS[0], labels=LABELS, threshold=0.2, max_labels=len(LABELS))
    same(together["entities"], served.library.entities(TEXTS[0], LABELS, threshold=0.2))
    groups = served.server.answer(text=TEXTS[0], labels=LABELS, threshold=0.2, max_labels=2)
    assert groups["usage"]["prompt_tokens"] > together["usage"]["prompt_tokens"]
    assert groups["usage"]["words"] == together["usage"]["words"]
    ends = [0, *(entity["end"] for entity in groups["entities"])]
    assert all(entity["start"] >= end for entity, end in zip(groups["entities"], ends, strict=False))


def test_the_python_client_has_candidates_and_groups_of_labels(served: Served) -> None:
    candidates = [{"id": f"Q{number}", "label": label} for number, label in enumerate(LABELS)]
    with GLiNER(served.server.url) as model:
        several = model.inference(TEXTS, LABELS, threshold=0.2, batch_size=1)
        for text, found in zip(TEXTS, several, strict=True):
            same(found, served.library.entities(text, LABELS, threshold=0.2))
        linked = model.inference(TEXTS, [], candidates_per_text=[candidates] * 4, threshold=0.2, batch_size=1)
        for found, plain in zip(linked, several, strict=True):
            same(found, [{**entity, "id": f"Q{LABELS.index(entity['label'])}"} for entity in plain])
        groups = served.server.answer(text=TEXTS[0], labels=LABELS, threshold=0.2, max_labels=2)["entities"]
        same(model.predict_entities(TEXTS[0], LABELS, threshold=0.2, max_labels=2), groups)
        with pytest.raises(InvalidRequestError) as caught:
            model.inference(TEXTS[:2], [], candidates_per_text=[candidates, candidates[:1] * 2], batch_size=1)
        assert caught.value.param == "data.candidates_per_text[1][1].label"


async def test_the_example_of_the_page_runs(served: Served) -> None:
    await documented.run("rerank", served.server.url, README)


def test_refusals_name_the_field(served: Served) -> None:
    assert served.server.refusal(text="a", labels=["x", "<<ENT>>"])["param"] == "data.labels[1]"
    assert served.server.refusal(text="a", labels=["x"], max_labels=0)["param"] == "data.max_labels"
    twice = [[{"id": "1", "label": "x"}, {"id": "2", "label": "x"}]]
    param = served.server.refusal(text="a", candidates_per_text=twice)["param"]
    assert param == "data.candidates_per_text[0][1].label"
    assert served.server.answer(text=" ", labels=["x"])["entities"] == []


def test_the_example_links_sentences_to_a_catalogue(served: Served, tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, str(EXAMPLE / "catalogue.py"), str(data)], check=True)
    catalogue, sentences = data / "catalogue.jsonl", data / "sentences.txt"
    library = built(LINKER, tmp_path / "checkpoint", for_prep=True)
    (names := tmp_path / "names.jsonl").write_text(NAMES)
    sets = ("--label-set", f"catalogue={catalogue}", "--label-set", f"names={names}")
    artifact = servers.prepare(LINKER, library.folder, tmp_path / ("b" * 64), *sets)
    with servers.running(artifact, name="linker") as linker:
        # those of the plugin's page
        with contextlib.chdir(tmp_path):
            asyncio.run(documented.run("linker", linker.url, README.parents[1] / LINKER / "README.md"))
        command = [sys.executable, str(EXAMPLE / "link.py"), linker.url, served.server.url, str(catalogue)]
        printed = subprocess.run([*command, str(sentences)], check=True, capture_output=True, text=True, timeout=300)
    records = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [record["sentence"] for record in records] == sentences.read_text().splitlines()
    entities = [json.loads(line) for line in catalogue.read_text().splitlines()]
    labels = {entity["id"]: entity["label"] for entity in entities}
    assert len(labels) == 10_000
    everything: dict[str, Any] = {"threshold": 0.0, "multi_label": True}
    for record in records[::25]:
        text, span = record["sentence"], [[{"start": record["start"], "end": record["end"]}]]
        own = [label for label in labels.values() if label.startswith(f"{record['name']}:")]
        scores = library.entities(text, own, input_spans=span, **everything)
        five = [entity["label"] for entity in sorted(scores, key=lambda entity: -entity["score"])[:5]]
        decided = served.library.entities(text, five, input_spans=span, **everything)
        chosen = max(decided, key=lambda entity: entity["score"])
        assert (labels[record["id"]], record["label"]) == (chosen["label"], chosen["label"])
        assert record["score"] == pytest.approx(chosen["score"], abs=SCORE)
