"""Models whose words only propose spans, on real vLLM in this process: equal to the library, whatever else is in the batch."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from encoder_checkpoints import gliner
from encoder_checkpoints.sentence import WORDS
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.tests.library import Library
from encoder_plugins.models.deberta_gliner_linker.tests.bi_engine import (
    LABELS,
    LOGIT,
    TEXTS,
    Model,
    requests,
    same,
)
from encoder_plugins.parity.tests.served_model import start
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", params=["gliner_linker_spans", "gliner_rerank_spans"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, Library]]:
    """The engine and the library on one checkpoint, as it was prepared and as it was published."""
    form = request.param
    folder = tmp_path_factory.mktemp(form)
    with environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = gliner.build(folder / "published", form)
        yield Model(start(gliner.FURTHER[form], "float32", folder, published)), Library(published)


def proposals(library: Library, text: str, labels: list[str], threshold: float) -> dict[tuple[int, int], np.ndarray]:
    """Return the logits `[labels]` of each span that the library's words propose, in its order; it has some more than once."""
    places, logits = library.proposed(text, labels, threshold)
    return {(first, last): values for (first, last), values in zip(places.tolist(), logits, strict=True)}


def test_logits_are_those_of_the_library_in_its_order(both: tuple[Model, Library], record_property: Any) -> None:
    model, library = both
    sent = requests()
    prompts = [prompt for text, labels in sent for prompt in model.prompts(text, labels, threshold=0.4)]
    worst, several = 0.0, 0
    for table, (text, labels) in zip(model.tables(prompts), sent, strict=True):
        rows = table.numpy()
        expected = proposals(library, text, labels, 0.4)
        several += len(library.proposed(text, labels, 0.4)[0]) - len(expected)
        likely = [
            (first, last - first, label)
            for (first, last), logits in expected.items()
            for label in np.flatnonzero(torch.sigmoid(torch.from_numpy(logits)).numpy() > 0.4)
        ]
        assert [tuple(row) for row in rows[:, : payload.LOGIT].astype(int).tolist()] == likely
        for first, further, label, logit in rows.tolist():
            worst = max(worst, abs(logit - float(expected[int(first), int(first + further)][int(label)])))
    record_property("worst", worst)
    assert worst <= LOGIT
    # what more than one label proposes
    assert several > 100


def different(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each entity once: the library has some as often as labels proposed their words, on some processors with scores that differ in the last bit."""
    first = {(entity["start"], entity["end"], entity["label"]): entity for entity in reversed(found)}
    return [entity for entity in found if entity is first[entity["start"], entity["end"], entity["label"]]]


def test_entities_are_those_of_the_library(both: tuple[Model, Library]) -> None:
    model, library = both
    found = repeated = 0
    for number, text in enumerate(TEXTS):
        for flat in (True, False):
            for several in (True, False):
                options: dict[str, Any] = {
                    "threshold": (0.2, 0.4)[number % 2],
                    "flat_ner": flat,
                    "multi_label": several,
                }
                theirs = library.entities(text, LABELS, **options)
                ours = model.answer({"text": text, "labels": LABELS, **options})["entities"]
                same(ours, different(theirs))
                assert several or len(ours) == len(theirs)
                found, repeated = found + len(ours), repeated + len(theirs) - len(ours)
    assert found > 50
    assert repeated > 50
    places = [(0, 8), (39, 52), (53, 56)]
    spans = [[{"start": start, "end": end} for start, end in places]]
    options = {"labels": LABELS, "threshold": 0.1, "flat_ner": False, "input_spans": spans}
    got = model.answer({"texts": TEXTS[:1], **options})["results"][0]["entities"]
    same(got, library.entities(TEXTS[0], **options))
    assert {(entity["start"], entity["end"]) for entity in got} <= set(places)


def test_an_answer_is_the_same_in_any_company(both: tuple[Model, Library]) -> None:
    model, _ = both
    prompts = [prompt for text, labels in requests() for prompt in model.prompts(text, labels, threshold=0.4)]
    alone = [table for prompt in prompts for table in model.tables([prompt])]
    assert sum(map(len, alone)) > 100
    order = random.Random(1).sample(range(len(prompts)), len(prompts))
    for number, table in zip(order, model.tables([prompts[number] for number in order]), strict=True):
        expected = alone[number]
        assert torch.equal(table[:, : payload.LOGIT], expected[:, : payload.LOGIT])
        # a batch of another size adds up in another order
        assert torch.allclose(table, expected, atol=5e-5, rtol=0)


def test_several_texts_in_one_prompt_have_their_own_labels(both: tuple[Model, Library]) -> None:
    model, library = both
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    got = model.answer({"texts": TEXTS, "labels_per_text": lists, "threshold": 0.3})["results"]
    assert sum(len(result["entities"]) for result in got) > 5
    for text, labels, result in zip(TEXTS, lists, got, strict=True):
        same(result["entities"], library.entities(text, labels, threshold=0.3))
    chunked = {"texts": [" ".join(WORDS * 9), TEXTS[0]], "labels": LABELS, "overflow": "chunk", "threshold": 0.3}
    first, second = model.answer(chunked)["results"]
    assert first["chunks"] > 1
    assert first["entities"]
    same(second["entities"], library.entities(TEXTS[0], LABELS, threshold=0.3))


def test_spans_are_bounded_before_and_behind_the_engine(both: tuple[Model, Library]) -> None:
    model, library = both
    short = "Tim Cook leads Apple in Cupertino."
    options: dict[str, Any] = {"threshold": 0.0, "flat_ner": False, "multi_label": True}
    everything = model.answer({"text": short, "labels": LABELS, **options})["entities"]
    theirs = library.entities(short, LABELS, **options)
    same(everything, different(theirs))
    # every label proposes every span
    assert len(theirs) == len(everything) * len(LABELS)
    assert sum(map(len, model.tables(model.prompts(short, LABELS, threshold=0.0)))) == 28 * len(LABELS)
    with pytest.raises(
        InvalidRequest, match=r"below 0\.1, spans times labels may be 223; they are at least 224"
    ) as caught:
        model.answer({"text": short, "labels": LABELS, **options}, candidates=223)
    assert caught.value.param == "data.threshold"
    with pytest.raises(InvalidRequest, match=r"the scores permit at least \d+ spans; the limit is 50") as caught:
        model.answer({"text": TEXTS[2], "labels": LABELS, "threshold": 0.3}, candidates=50)
    assert caught.value.param == "data.threshold"
