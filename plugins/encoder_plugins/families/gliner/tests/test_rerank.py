"""Requests of the plugin that serves token-level models: its answers are the library's, and groups of labels, ids and limits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.limits import TOKEN_LIMITS
from encoder_plugins.families.gliner.processor import GlinerProcessor
from encoder_plugins.families.gliner.rerank import RerankProcessor
from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library, built
from encoder_plugins.families.gliner.words import Split, split
from encoder_plugins.inputs import body as bodies
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

# the library and torch warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

LABELS = ["person", "company", "city", "date of birth", "sports team", "country", "river"]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "short",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 5,
    " \n\t",
    "",
]
Entities = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rerank(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The library on a token-level checkpoint."""
    return built("modernbert_gliner_rerank", tmp_path_factory.mktemp("rerank"))


def processor(library: Library, kind: type[GlinerProcessor] = RerankProcessor, **limits: int) -> GlinerProcessor:
    values = {limit.name: limit.default for limit in TOKEN_LIMITS} | limits
    return kind(ServingContext(model=library.folder, max_model_len=2048, names=("ner",), limits=values))


def pooled(library: Library, prompt: Prompt) -> torch.Tensor:
    """Answer a prompt of any number of texts as our pooler does."""
    items = payload.decode(prompt.parameters)
    assert items is not None
    tables, begin, words = [], 0, 0
    marks = token_marks.decode(prompt.parameters or {}, len(prompt.token_ids))
    for item, count in zip(items, [len(prompt.token_ids)] if marks is None else marks.tokens.tolist(), strict=True):
        extra = payload.encode(item.words, item.labels, item.threshold)
        table = library.pooled(prompt.token_ids[begin : begin + count], extra)
        table[:, payload.START] += words
        begin, words = begin + count, words + len(item.words)
        tables.append(table)
    return torch.cat(tables)


def answer(library: Library, ours: GlinerProcessor, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of our processor, with the library's model in the engine's place."""
    running: Running = ours.run(ours.parse(POOLING, bodies.encode(data)), ENGINE)
    found = advance(running)
    if isinstance(found, Round):
        found = advance(running, [pooled(library, prompt) for prompt in found.prompts])
    assert isinstance(found, Response)
    body: dict[str, Any] = json.loads(found.body)["data"]
    return body


def results(library: Library, ours: GlinerProcessor | None = None, **data: Any) -> list[Entities]:
    found = answer(library, ours or processor(library), data)
    return [result["entities"] for result in found["results"]]


def same(ours: Entities, theirs: Entities) -> None:
    assert [{**entity, "score": 0} for entity in ours] == [{**entity, "score": 0} for entity in theirs]
    assert [entity["score"] for entity in ours] == pytest.approx([entity["score"] for entity in theirs], abs=1e-6)


def refusal(library: Library, ours: GlinerProcessor | None = None, **data: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        answer(library, ours or processor(library), data)
    return caught.value.param, str(caught.value)


@pytest.mark.parametrize("threshold", [0, 0.1, 0.3, 0.5, 1])
@pytest.mark.parametrize(("flat", "several"), [(True, False), (True, True), (False, False), (False, True)])
def test_entities_are_the_library_s(rerank: Library, threshold: float, flat: bool, several: bool) -> None:
    texts = TEXTS if threshold else TEXTS[:3]
    options: dict[str, Any] = {"threshold": threshold, "flat_ner": flat, "multi_label": several}
    found = results(rerank, texts=texts, labels=LABELS, **options)
    for text, entities in zip(texts, found, strict=True):
        same(entities, rerank.entities(text, LABELS, **options))
    assert any(found) == (threshold < 1)


def test_spans_of_the_client_are_scored_as_given(rerank: Library) -> None:
    spans = [{"start": 0, "end": 8}, {"start": 0, "end": 39}, {"start": 15, "end": 20}, {"start": 15, "end": 19}]
    for threshold in (0, 0.3):
        options: dict[str, Any] = {"threshold": threshold, "multi_label": True, "flat_ner": False}
        (found,) = results(rerank, texts=TEXTS[:1], labels=LABELS, input_spans=[spans], **options)
        same(found, rerank.entities(TEXTS[0], LABELS, input_spans=[spans], **options))
        if not threshold:
            assert len({(entity["start"], entity["end"]) for entity in found}) > 1


def test_candidates_are_labels_whose_ids_come_back(rerank: Library) -> None:
    lists = [
        [{"id": f"Q{text}.{number}", "label": name} for number, name in enumerate(LABELS[text:])] for text in (0, 3)
    ]
    texts = [TEXTS[0], TEXTS[3]]
    options: dict[str, Any] = {"threshold": 0.2}
    found = results(rerank, texts=texts, candidates_per_text=lists, **options)
    for text, candidates, entities in zip(texts, lists, found, strict=True):
        ids = {candidate["label"]: candidate["id"] for candidate in candidates}
        expected = rerank.entities(text, list(ids), **options)
        assert expected
        same(entities, [{**entity, "id": ids[entity["label"]]} for entity in expected])


def overlaps(one: Mapping[str, Any], other: Mapping[str, Any], flat: bool, several: bool) -> bool:
    """Say by the library's rules whether two entities exclude each other."""
    (first, last), (begin, end) = ((entity["start"], entity["end"] - 1) for entity in (one, other))
    if (first, last) == (begin, end):
        return not several
    nested = (first <= begin and end <= last) or (begin <= first and last <= end)
    return not (first > end or begin > last) and (flat or not nested)


@pytest.mark.parametrize(("flat", "several"), [(True, False), (True, True), (False, False), (False, True)])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_labels_in_groups_are_read_one_after_the_other_and_then_compete(
    rerank: Library, flat: bool, several: bool, most: int
) -> None:
    options: dict[str, Any] = {"threshold": 0.3, "flat_ner": flat, "multi_label": several}
    found = results(rerank, texts=TEXTS, labels=LABELS, max_labels=most, **options)
    groups = [LABELS[first : first + most] for first in range(0, len(LABELS), most)]
    for text, entities in zip(TEXTS, found, strict=True):
        each = [entity for group in groups for entity in rerank.entities(text, group, **options)]
        kept: Entities = []
        for entity in sorted(each, key=lambda entity: -entity["score"]):
            if not any(overlaps(entity, better, flat, several) for better in kept):
                kept.append(entity)
        same(entities, sorted(kept, key=lambda entity: entity["start"]))


def test_a_long_text_is_refused_cut_or_read_in_parts(rerank: Library) -> None:
    text = TEXTS[3] * 3
    data: dict[str, Any] = {"texts": [text], "labels": LABELS, "threshold": 0.3}
    assert refusal(rerank, **data)[0] == "data.texts[0]"
    (cut,) = answer(rerank, processor(rerank), {**data, "overflow": "truncate", "max_labels": 3})["results"]
    assert (cut["truncated"], cut["words_kept"]) == (True, MAX_WORDS)
    (whole,) = answer(rerank, processor(rerank), {**data, "overflow": "truncate"})["results"]
    same(whole["entities"], rerank.entities(text, LABELS, threshold=0.3))
    (parts,) = answer(rerank, processor(rerank), {**data, "overflow": "chunk"})["results"]
    assert parts["chunks"] > 1
    assert parts["entities"][-1]["start"] > whole["entities"][-1]["start"]
    ends = [0, *(entity["end"] for entity in parts["entities"])]
    assert all(entity["start"] >= end for entity, end in zip(parts["entities"], ends, strict=False))


def test_no_group_s_entities_are_behind_the_words_that_every_group_keeps(rerank: Library, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(rerank.folder / name, tmp_path / name)
    about = json.loads((rerank.folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**about, "model_max_length": 60}))
    ours = processor(Library(tmp_path))
    data = {"texts": TEXTS[3:4], "threshold": 0.1, "flat_ner": False, "overflow": "truncate", "max_labels": 1}
    places = Split(split(TEXTS[3])).places(TEXTS[3])
    kept: list[int] = []
    ends: list[int] = []
    for labels in (LABELS[:1], ["sports team " * 5], [LABELS[0], "sports team " * 5]):
        (found,) = answer(rerank, ours, {**data, "labels": labels})["results"]
        kept.append(places[found["words_kept"] - 1][1])
        ends.append(found["entities"][-1]["end"])
    assert kept[1] < kept[0]
    assert kept[2] == kept[1] < ends[0]
    assert ends[2] <= kept[2]


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ({"candidates_per_text": [[]], "labels": ["x"]}, "data.candidates_per_text", "labels and candidates_per_text"),
        ({"candidates_per_text": [[], []]}, "data.candidates_per_text", "2 lists of candidates for 1 texts"),
        (
            {"candidates_per_text": [[{"id": "1", "label": "a"}, {"id": "2", "label": "a"}]]},
            "data.candidates_per_text[0][1].label",
            "the same label",
        ),
        ({"candidates_per_text": [[{"id": "1", "label": " "}]]}, "data.candidates_per_text[0][0].label", "blank"),
        (
            {"candidates_per_text": [[{"id": "1", "label": "a<<ENT>>"}]]},
            "data.candidates_per_text[0][0].label",
            "<<ENT>>",
        ),
        (
            {"candidates_per_text": [[{"id": "1" * 300, "label": "a"}]]},
            "data.candidates_per_text[0][0].id",
            "limit is 256",
        ),
        (
            {"candidates_per_text": [[{"id": "1", "label": f"l{number}"} for number in range(1001)]]},
            "data.candidates_per_text[0]",
            "the limit is 1000",
        ),
        ({"candidates_per_text": [[{"label": "a"}]]}, "data.candidates_per_text[0][0]", "id"),
        ({"labels": ["a"], "max_labels": 0}, "data.max_labels", "1"),
        ({}, "data.labels", "one of labels, labels_per_text and candidates_per_text"),
        ({"labels": ["a"], "return_class_probs": True}, "data", "return_class_probs"),
    ],
)
def test_a_bad_request_is_refused_with_its_field(
    rerank: Library, data: dict[str, Any], param: str, message: str
) -> None:
    found, words = refusal(rerank, texts=["a b"], **data)
    assert str(found).startswith(param)
    assert message in words
    assert "data." not in words.removeprefix(f"{found}: ")


def test_what_scores_permit_is_limited_before_it_is_made(rerank: Library) -> None:
    data: dict[str, Any] = {"texts": [TEXTS[3]] * 2, "labels": LABELS}
    param, words = refusal(rerank, processor(rerank, candidates=500), threshold=0.05, **data)
    assert (param, "words times labels may be 500" in words) == ("data.threshold", True)
    param, words = refusal(rerank, processor(rerank, candidates=20), threshold=0.1, **data)
    assert (param, "the limit is 20" in words) == ("data.threshold", True)
    assert refusal(rerank, processor(rerank, prompts=13), max_labels=1, **data)[0] == "data.texts[1]"


def test_class_probabilities_are_refused_where_words_are_scored(rerank: Library) -> None:
    ours = processor(rerank, GlinerProcessor)
    param, _ = refusal(rerank, ours, text="a b", labels=["x"], return_class_probs=True)
    assert param == "data.return_class_probs"
    same(
        answer(rerank, ours, {"text": TEXTS[0], "labels": LABELS, "threshold": 0.2})["entities"],
        rerank.entities(TEXTS[0], LABELS, threshold=0.2),
    )
