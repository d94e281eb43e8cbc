"""Span bi-encoders on real vLLM in this process: equal to the library, whatever else is in the batch, and for thousands of labels."""

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
from encoder_plugins.inputs.encodings import decode_base64
from encoder_plugins.models.deberta_gliner_linker.tests.bi_engine import (
    LABELS,
    LOGIT,
    TEXTS,
    VECTOR,
    Model,
    requests,
    same,
)
from encoder_plugins.parity.tests.served_model import start
from encoder_plugins.serving.processor import Prompt
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]


class SpanModel(Model):
    """One with a cache of lists of labels, too."""

    def forget_labels(self) -> tuple[int, int]:
        """Empty the caches of labels; return how many labels, and lists of them, there were."""
        (found,) = self.engine.apply_model(_forget)
        return tuple(found)


def _forget(model: Any) -> tuple[int, int]:
    pooler = model.pooler
    counts = len(pooler.labels.cache), len(pooler.matrices)
    pooler.labels.cache._rows.clear()
    pooler.matrices.clear()
    return counts


def _warm_up(model: Any) -> int:
    encoder_size = model.config.hidden_size
    model.pooler.warm_up(torch.zeros(1, encoder_size))
    return len(model.pooler.labels.cache) + len(model.pooler.matrices)


@pytest.fixture(scope="module", params=["gliner_bi_modernbert", "gliner_bi_deberta"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SpanModel, Library]]:
    """The engine and the library on one checkpoint, as it was prepared and as it was published."""
    form = request.param
    folder = tmp_path_factory.mktemp(form)
    with environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = gliner.build(folder / "published", form)
        yield SpanModel(start(gliner.FURTHER[form], "float32", folder, published)), Library(published)


def test_logits_are_those_of_the_library(both: tuple[SpanModel, Library], record_property: Any) -> None:
    model, library = both
    sent = requests()
    prompts = [prompt for text, labels in sent for prompt in model.prompts(text, labels, threshold=0.0)]
    worst = 0.0
    for table, (text, labels) in zip(model.tables(prompts), sent, strict=True):
        expected = library.logits(text, labels).numpy()
        words, widths, _ = expected.shape
        inside = np.arange(words)[:, None] + np.arange(widths)[None] < words
        rows = table.numpy()
        start, width, label = rows[:, : payload.LOGIT].astype(int).T
        assert len(rows) == inside.sum() * len(labels)
        worst = max(worst, float(np.abs(rows[:, payload.LOGIT] - expected[start, width, label]).max()))
    record_property("worst", worst)
    assert worst <= LOGIT


def test_entities_are_those_of_the_library(both: tuple[SpanModel, Library]) -> None:
    model, library = both
    found = 0
    for number, text in enumerate(TEXTS):
        for flat in (True, False):
            for several in (True, False):
                options: dict[str, Any] = {
                    "threshold": (0.2, 0.4)[number % 2],
                    "flat_ner": flat,
                    "multi_label": several,
                }
                ours = model.answer({"text": text, "labels": LABELS, **options})["entities"]
                same(ours, library.entities(text, LABELS, **options))
                found += len(ours)
    assert found > 50
    places = [(0, 8), (39, 52), (53, 56)]
    spans = [[{"start": start, "end": end} for start, end in places]]
    options = {"labels": LABELS, "threshold": 0.1, "flat_ner": False, "input_spans": spans}
    got = model.answer({"texts": TEXTS[:1], **options})["results"][0]["entities"]
    same(got, library.entities(TEXTS[0], **options))
    assert {(entity["start"], entity["end"]) for entity in got} <= set(places)


def test_an_answer_is_the_same_in_any_company_and_with_any_cache(both: tuple[SpanModel, Library]) -> None:
    model, _ = both
    prompts = [prompt for text, labels in requests() for prompt in model.prompts(text, labels, threshold=0.2)]
    alone = []
    for prompt in prompts:
        model.forget_labels()
        alone += model.tables([prompt])
    assert sum(map(len, alone)) > 100
    # beside one whose labels are no labels, which gets nothing
    odd = Prompt(token_ids=[5, 6, 7], parameters={**payload.encode([1], [3], 0.5), **payload.encode_runs([b"\0" * 4])})
    order = random.Random(1).sample(range(len(prompts)), len(prompts))
    for cold in (True, False):
        if cold:
            model.forget_labels()
        company = [odd, *(prompts[number] for number in order), odd]
        first, *tables, last = model.tables(company)
        assert not len(first)
        assert not len(last)
        for number, table in zip(order, tables, strict=True):
            expected = alone[number]
            assert torch.equal(table[:, : payload.LOGIT], expected[:, : payload.LOGIT])
            # a batch of another size adds up in another order
            assert torch.allclose(table, expected, atol=5e-5, rtol=0)
    lists = {tuple(labels) for _, labels in requests()}
    assert model.forget_labels() == (len(LABELS), len(lists))


def test_several_texts_in_one_prompt_have_their_own_labels(both: tuple[SpanModel, Library]) -> None:
    model, library = both
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    got = model.answer({"texts": TEXTS, "labels_per_text": lists, "threshold": 0.2})["results"]
    for text, labels, result in zip(TEXTS, lists, got, strict=True):
        same(result["entities"], library.entities(text, labels, threshold=0.2))
    candidates = [[{"id": f"Q{LABELS.index(label)}", "label": label} for label in labels] for labels in lists]
    linked = model.answer({"texts": TEXTS, "candidates_per_text": candidates, "threshold": 0.2})["results"]
    for result, plain in zip(linked, got, strict=True):
        same(
            result["entities"],
            [{**entity, "id": f"Q{LABELS.index(entity['label'])}"} for entity in plain["entities"]],
        )
    chunked = {"texts": [" ".join(WORDS * 9), TEXTS[0]], "labels": LABELS, "overflow": "chunk", "threshold": 0.2}
    first, second = model.answer(chunked)["results"]
    assert first["chunks"] > 1
    assert first["entities"]
    same(second["entities"], library.entities(TEXTS[0], LABELS, threshold=0.2))


def test_vectors_of_labels_are_those_of_the_library_and_stand_for_the_labels(both: tuple[SpanModel, Library]) -> None:
    model, library = both
    encoded = model.answer({"encode": "labels", "labels": LABELS})["label_vectors"]
    ours = np.stack([decode_base64(encoded["vectors"][label]) for label in LABELS])
    np.testing.assert_allclose(ours, library.label_vectors(LABELS).numpy(), rtol=0, atol=VECTOR)
    data = {"texts": TEXTS, "labels": LABELS, "threshold": 0.2}
    expected = model.answer(data)["results"]
    assert sum(len(result["entities"]) for result in expected) > 10
    model.forget_labels()
    for result, plain in zip(model.answer({**data, "label_vectors": encoded})["results"], expected, strict=True):
        same(result["entities"], plain["entities"])
    assert model.forget_labels()[0] == 0


def test_labels_with_the_same_tokens_have_the_same_scores(both: tuple[SpanModel, Library]) -> None:
    model, _ = both
    data = {"text": TEXTS[0], "threshold": 0.2, "multi_label": True}
    expected = model.answer({**data, "labels": ["city"]})["entities"]
    model.forget_labels()
    found = model.answer({**data, "labels": ["city", "City", "CITY"]})["entities"]
    for label in ("city", "City", "CITY"):
        same([{**entity, "label": "city"} for entity in found if entity["label"] == label], expected)
    assert model.forget_labels() == (1, 1)


def test_the_memory_of_a_gpu_is_used_in_the_profile_run_and_nothing_is_kept(both: tuple[SpanModel, Library]) -> None:
    model, _ = both
    model.forget_labels()
    assert model.engine.apply_model(_warm_up) == [0]


def test_thousands_of_labels_are_those_of_the_library(both: tuple[SpanModel, Library]) -> None:
    model, library = both
    many = [f"{kind} {number}" for number in range(1_250) for kind in ("river", "city of", "person", "year")]
    raised = {"labels": len(many)}
    data: dict[str, Any] = {"labels": many, "threshold": 0.8}
    # beside texts with labels of their own
    got = model.answer({"text": TEXTS[0], **data}, **raised)["entities"]
    same(got, library.entities(TEXTS[0], many, threshold=0.8))
    assert len(got) > 2
    # most spans are candidates of some label
    with pytest.raises(InvalidRequest, match=r"the scores permit at least \d+ spans; the limit is 100") as caught:
        model.answer({"text": TEXTS[0], **data}, candidates=100, **raised)
    assert caught.value.param == "data.threshold"
    with pytest.raises(InvalidRequest, match="words times span widths times labels may be 1000000"):
        model.answer({"text": " ".join(WORDS * 4), **data, "threshold": 0.05}, **raised)
