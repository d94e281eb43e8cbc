"""The plugin on real vLLM in this process: equal to the library, whatever else is in the batch and in the cache of labels."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from encoder_checkpoints import gliner
from encoder_checkpoints.sentence import WORDS
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.processor import Parsed
from encoder_plugins.families.gliner.request import EntityRequest
from encoder_plugins.families.gliner.tests.library import Library
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.encodings import decode_base64, encode_base64
from encoder_plugins.parity.tests.served_model import Served, environment, pooled, start
from encoder_plugins.plugin import resolve
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Prompt, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, advance

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]

PLUGIN = "deberta_gliner_linker"
LABELS = [
    "person",
    "company: American technology company, maker of the iPhone",
    "city",
    "date of birth",
    "pays où l'on vit",
    "人物",
    "sports team " * 12,
    "river",
]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 5,
    "<<ENT>> [SEP] one",
]
# sums over other batches end in other bits
LOGIT, SCORE, VECTOR = 1e-4, 2.5e-5, 5e-5
DIGEST = "sha256:" + "0" * 64


class Model:
    """The plugin's processor, and the engine that it runs on."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.engine = served.engine(served.model)

    def processor(self, **values: int) -> Any:
        """Return a processor with limits other than the defaults."""
        context = ServingContext(
            model=self.served.model,
            max_model_len=self.engine.model_config.max_model_len,
            names=("m",),
            limits=limits.defaults(self.served.plugin) | values,
            dtype="float32",
            digest=DIGEST,
        )
        return resolve(self.served.plugin.processor)(context)

    def prompts(self, text: str, labels: Sequence[str], **options: Any) -> Sequence[Prompt]:
        """Return what the engine gets for a text."""
        parsed: Parsed = self.processor().prepare(EntityRequest(text=text, labels=list(labels), **options))
        return parsed.prompts

    def tables(self, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        """Return what the pooler answers to prompts of one call."""
        return pooled(self.engine, self.served.plugin, Round(prompts, None))

    def answer(self, data: Mapping[str, Any], **values: int) -> dict[str, Any]:
        """Return the answer to a request."""
        ours = self.processor(**values)
        running = ours.run(ours.parse(self.served.plugin.routes[0], bodies.encode(data)), ENGINE)
        step = advance(running)
        while isinstance(step, Round):
            step = advance(running, pooled(self.engine, self.served.plugin, step))
        found: dict[str, Any] = json.loads(step.body)["data"]
        return found

    def forget_labels(self) -> int:
        """Empty the cache of labels; return how many were in it."""
        return sum(self.engine.apply_model(_forget))


def _forget(model: Any) -> int:
    cache = model.pooler.labels.cache
    count = len(cache)
    cache._rows.clear()
    return count


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, Library]]:
    """The engine and the library on one checkpoint, as it was prepared and as it was published."""
    folder = tmp_path_factory.mktemp(PLUGIN)
    with environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = gliner.build(folder / "published", PLUGIN)
        yield Model(start(PLUGIN, "float32", folder, published)), Library(published)


def requests() -> list[tuple[str, list[str]]]:
    """Texts of 1 to 120 words, with 1 to 8 labels in many orders."""
    generator = random.Random(0)
    counts = [1, 5, 17, 40, 3, 120, 64, 17, 2, 90, 11, 1]
    return [
        (" ".join((WORDS * 8)[number : number + count]), generator.sample(LABELS, 1 + number % len(LABELS)))
        for number, count in enumerate(counts)
    ]


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare entities one by one and in order."""
    assert [{**entity, "score": 0} for entity in ours] == [{**entity, "score": 0} for entity in theirs]
    assert [entity["score"] for entity in ours] == pytest.approx([entity["score"] for entity in theirs], abs=SCORE)


def test_logits_are_those_of_the_library(both: tuple[Model, Library], record_property: Any) -> None:
    model, library = both
    sent = requests()
    prompts = [prompt for text, labels in sent for prompt in model.prompts(text, labels, threshold=0.0)]
    worst = 0.0
    for table, (text, labels) in zip(model.tables(prompts), sent, strict=True):
        expected = library.logits(text, labels).numpy()
        found = np.full(expected.shape, np.nan, np.float32)
        rows = table.numpy()
        word, label = rows[:, : payload.TOKEN_LOGITS].astype(int).T
        found[word, label] = rows[:, payload.TOKEN_LOGITS :]
        worst = max(worst, float(np.abs(found - expected).max()))
    record_property("worst", worst)
    assert worst <= LOGIT


def test_entities_are_those_of_the_library(both: tuple[Model, Library]) -> None:
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


def test_an_answer_is_the_same_in_any_company_and_with_any_cache(both: tuple[Model, Library]) -> None:
    model, _ = both
    prompts = [prompt for text, labels in requests() for prompt in model.prompts(text, labels, threshold=0.4)]
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
            assert torch.equal(table[:, : payload.TOKEN_LOGITS], expected[:, : payload.TOKEN_LOGITS])
            # a batch of another size adds up in another order
            assert torch.allclose(table, expected, atol=5e-5, rtol=0)
    assert model.forget_labels() == len(LABELS)


def test_several_texts_in_one_prompt_have_their_own_labels(both: tuple[Model, Library]) -> None:
    model, library = both
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    got = model.answer({"texts": TEXTS, "labels_per_text": lists, "threshold": 0.3})["results"]
    for text, labels, result in zip(TEXTS, lists, got, strict=True):
        same(result["entities"], library.entities(text, labels, threshold=0.3))
    candidates = [[{"id": f"Q{LABELS.index(label)}", "label": label} for label in labels] for labels in lists]
    linked = model.answer({"texts": TEXTS, "candidates_per_text": candidates, "threshold": 0.3})["results"]
    for result, plain in zip(linked, got, strict=True):
        same(
            result["entities"],
            [{**entity, "id": f"Q{LABELS.index(entity['label'])}"} for entity in plain["entities"]],
        )


def test_vectors_of_labels_are_those_of_the_library_and_stand_for_the_labels(both: tuple[Model, Library]) -> None:
    model, library = both
    model.forget_labels()
    encoded = model.answer({"encode": "labels", "labels": [*LABELS, LABELS[0]]})["label_vectors"]
    assert encoded["digest"] == DIGEST
    assert list(encoded["vectors"]) == LABELS
    ours = np.stack([decode_base64(encoded["vectors"][label]) for label in LABELS])
    np.testing.assert_allclose(ours, library.label_vectors(LABELS).numpy(), rtol=0, atol=VECTOR)
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    data = {"texts": TEXTS, "labels_per_text": lists, "threshold": 0.3}
    expected = model.answer(data)["results"]
    assert sum(len(result["entities"]) for result in expected) > 10
    some = {**encoded, "vectors": {label: encoded["vectors"][label] for label in LABELS[1::2]}}
    for given, left in ((encoded, 0), (some, 4)):
        model.forget_labels()
        for result, plain in zip(model.answer({**data, "label_vectors": given})["results"], expected, strict=True):
            same(result["entities"], plain["entities"])
        # the others were encoded
        assert model.forget_labels() == left
    # the vectors are what is scored: those of other labels make other scores
    turned = {"digest": DIGEST, "vectors": dict(zip(LABELS, [*encoded["vectors"].values()][::-1], strict=True))}
    text = {"text": TEXTS[0], "labels": LABELS, "threshold": 0.2, "multi_label": True}
    names = dict(zip(LABELS, LABELS[::-1], strict=True))
    renamed = [
        {**entity, "label": names[entity["label"]]}
        for entity in model.answer({**text, "labels": LABELS[::-1]})["entities"]
    ]
    same(model.answer({**text, "label_vectors": turned})["entities"], renamed)


def given(*numbers: float, count: int = 96, digest: str = DIGEST) -> dict[str, Any]:
    """A vector for the label x, with these numbers and as many zeros as it lacks."""
    vector = np.zeros((1, count), np.float32)
    vector[0, : len(numbers)] = numbers
    return {"digest": digest, "vectors": {"x": encode_base64(vector)[0]}}


GIVEN = "data.label_vectors.vectors"


@pytest.mark.parametrize(
    ("data", "values", "param", "message"),
    [
        ({"label_vectors": given(digest="sha256:1")}, {}, "data.label_vectors.digest", "is served"),
        ({"label_vectors": given(count=95)}, {}, GIVEN, "has 95 numbers; expected 96"),
        ({"label_vectors": given(float("nan"))}, {}, GIVEN, "not finite"),
        ({"label_vectors": given(0.0, float("-inf"))}, {}, GIVEN, "not finite"),
        ({"label_vectors": given(7e4)}, {}, GIVEN, "beyond 65504"),
        ({"label_vectors": {"digest": DIGEST, "vectors": {"x": "%"}}}, {}, GIVEN, "in base64"),
        ({"label_vectors": {"digest": DIGEST, "vectors": {"x": "AAA="}}}, {}, GIVEN, "in base64"),
        ({"label_vectors": given()}, {"label_vectors": 0}, GIVEN, "the limit is 0"),
        ({"encode": "labels"}, {}, "data.text", "with encode"),
        ({"encode": "labels", "text": None, "threshold": 0.1}, {}, "data.threshold", "with encode"),
        ({"encode": "labels", "text": None, "labels": []}, {}, "data.labels", "no labels"),
        ({"encode": "labels", "text": None, "labels": ["x", ""]}, {}, "data.labels[1]", "blank"),
        ({"encode": "labels", "text": None}, {"label_tokens": 1}, "data.labels", "the limit is 1"),
        ({"encode": "texts", "text": None}, {}, "data.encode", ""),
    ],
)
def test_a_bad_request_with_vectors_is_refused_by_field(
    both: tuple[Model, Library], data: dict[str, Any], values: dict[str, int], param: str, message: str
) -> None:
    model, _ = both
    with pytest.raises(InvalidRequest, match=message) as caught:
        model.answer({"text": "Tim Cook leads Apple.", "labels": ["x"], **data}, **values)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("data", "values", "param", "message"),
    [
        ({"labels": ["x", " "]}, {}, "data.labels[1]", "blank"),
        ({"labels": ["x", "x y " * 300]}, {"label_characters": 2000}, "data.labels[1]", "the model takes 512"),
        ({"labels": ["one", "two", "three"]}, {"label_tokens": 8}, "data.labels", "the limit is 8"),
        (
            {"candidates_per_text": [[{"id": "1", "label": "one two"}]]},
            {"label_tokens": 2},
            "data.candidates_per_text",
            "the limit is 2",
        ),
        (
            {"candidates_per_text": [[{"id": "1", "label": "x"}, {"id": "2", "label": "x"}]]},
            {},
            "data.candidates_per_text[0][1].label",
            "two ids",
        ),
        ({"labels": ["x"], "max_labels": 2}, {}, "data.max_labels", ""),
        ({"labels": ["x"], "return_class_probs": True}, {}, "data.return_class_probs", ""),
    ],
)
def test_a_bad_request_is_refused_by_field(
    both: tuple[Model, Library], data: dict[str, Any], values: dict[str, int], param: str, message: str
) -> None:
    model, _ = both
    with pytest.raises(InvalidRequest, match=message) as caught:
        model.answer({"text": "Tim Cook leads Apple.", **data}, **values)
    assert caught.value.param == param
