"""The plugin on real vLLM in this process: equal to the library, whatever else is in the batch and in the cache of labels."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from encoder_checkpoints import gliner
from encoder_checkpoints.answer_cache import library_answer
from encoder_client import AsyncGLiNER, GLiNER, InvalidRequestError, LabelVectors
from encoder_client.tests.scripted_server import Reply, ScriptedServer, refusal
from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.tests.library import Library
from encoder_plugins.inputs.encodings import decode_base64, encode_base64
from encoder_plugins.models.deberta_gliner_linker.tests.bi_engine import (
    DIGEST,
    LABELS,
    LOGIT,
    TEXTS,
    VECTOR,
    Model,
    requests,
    same,
)
from encoder_plugins.parity.tests.served_model import pooled, start
from encoder_plugins.serving.processor import Prompt
from encoder_plugins.serving.rounds import ENGINE, Round, advance
from encoder_plugins.serving.tests.in_process import environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    # vLLM, torch and transformers warn a lot about themselves
    pytest.mark.filterwarnings("ignore"),
]

PLUGIN = "deberta_gliner_linker"
SETS = {
    "catalogue": [Label(f"Q{number}", label) for number, label in enumerate(LABELS)],
    "large": [Label(f"E{number}", f"entity {number}") for number in range(1_001)],
}


class TokenModel(Model):
    """One that has label sets."""

    def started(self, processor: Any, **options: float) -> list[str]:
        """Have a processor do what it does before the first request; return its sentences."""
        starting: Any = processor.start(ENGINE, **options)
        step: Any = advance(starting)
        while isinstance(step, Round):
            step = advance(starting, pooled(self.engine, self.served.plugin, step))
        return list(step)

    def forget_labels(self) -> int:
        """Empty the cache of labels; return how many were in it."""
        return sum(self.engine.apply_model(_forget))


def _forget(model: Any) -> int:
    cache = model.pooler.labels.cache
    count = len(cache)
    cache._rows.clear()
    return count


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TokenModel, Library]]:
    """The engine and the library on one checkpoint, as it was prepared and as it was published."""
    folder = tmp_path_factory.mktemp(PLUGIN)
    with environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = gliner.build(folder / "published", PLUGIN)
        (sets := folder / label_sets.FOLDER).mkdir()
        for name, labels in SETS.items():
            label_sets.write(labels, sets / f"{name}{label_sets.SUFFIX}")
        yield TokenModel(start(PLUGIN, "float32", folder, published), sets), Library(published)


def test_logits_are_those_of_the_library(both: tuple[TokenModel, Library], record_property: Any) -> None:
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


def test_entities_are_those_of_the_library(both: tuple[TokenModel, Library]) -> None:
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


def test_an_answer_is_the_same_in_any_company_and_with_any_cache(both: tuple[TokenModel, Library]) -> None:
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


def test_several_texts_in_one_prompt_have_their_own_labels(both: tuple[TokenModel, Library]) -> None:
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


def test_vectors_of_labels_are_those_of_the_library_and_stand_for_the_labels(both: tuple[TokenModel, Library]) -> None:
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
        ({"label_vectors": {"digest": DIGEST, "vectors": {"x": "", " ": ""}}}, {}, f"{GIVEN}. ", "the label is blank"),
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
    both: tuple[TokenModel, Library], data: dict[str, Any], values: dict[str, int], param: str, message: str
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
    both: tuple[TokenModel, Library], data: dict[str, Any], values: dict[str, int], param: str, message: str
) -> None:
    model, _ = both
    with pytest.raises(InvalidRequest, match=message) as caught:
        model.answer({"text": "Tim Cook leads Apple.", **data}, **values)
    assert caught.value.param == param


def test_a_set_answers_what_its_labels_answer_and_names_them_by_id(both: tuple[TokenModel, Library]) -> None:
    model, _ = both
    data: dict[str, Any] = {"texts": TEXTS, "threshold": 0.3}
    plain = model.answer({**data, "labels": LABELS})["results"]
    assert sum(len(result["entities"]) for result in plain) > 10
    ids = {label.text: label.id for label in SETS["catalogue"]}

    def with_ids(results: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        return [[{**entity, "id": ids[entity["label"]]} for entity in result["entities"]] for result in results]

    by_name = model.answer({**data, "label_set": "catalogue"})["results"]
    assert [result["entities"] for result in by_name] == with_ids(plain)
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    some = model.answer({**data, "labels_per_text": lists})["results"]
    candidates = [[ids[label] for label in (*labels, labels[0])] for labels in lists]
    by_id = model.answer({**data, "label_set": "catalogue", "candidates_per_text": candidates})["results"]
    assert [result["entities"] for result in by_id] == with_ids(some)


def test_the_labels_of_sets_are_encoded_before_the_first_request_as_far_as_there_is_room(
    both: tuple[TokenModel, Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = both
    expected = model.answer({"text": TEXTS[0], "labels": LABELS, "threshold": 0.2})["entities"]
    rows = 96 * 4
    for room, sentences in (
        (1_100, ("8 of 8 labels are encoded", "1001 of 1001 labels are encoded")),
        (100, ("8 of 8 labels are encoded", "92 of 1001 labels are encoded; 92 fit into the cache")),
    ):
        monkeypatch.setattr(payload, "LABEL_CACHE_BYTES", room * rows)
        model.forget_labels()
        ours = model.processor()
        assert model.started(ours) == [
            f"Label set {name}: {sentence}" for name, sentence in zip(SETS, sentences, strict=True)
        ]
        answer = model.answer({"text": TEXTS[0], "label_set": "catalogue", "threshold": 0.2})["entities"]
        assert [{name: value for name, value in entity.items() if name != "id"} for entity in answer] == expected
        assert model.forget_labels() == min(room, 1_009)
    assert model.started(ours, seconds=-1.0)[0] == "Label set catalogue: 0 of 8 labels are encoded; time was up"


@pytest.fixture
def server(both: tuple[TokenModel, Library]) -> Iterator[ScriptedServer]:
    """What clients reach of the engine: at most 3 labels in one request for vectors, a limit that the client does not know."""
    model, _ = both
    # the engine is in this process, where vLLM takes one call at a time
    one_at_a_time = threading.Lock()

    def answer(data: Any) -> Reply:
        try:
            with one_at_a_time:
                return Reply(200, {"data": model.answer(data, **({"labels": 3} if "encode" in data else {}))})
        except InvalidRequest as error:
            return refusal(400, str(error), error.param)

    with ScriptedServer(PLUGIN, answer) as server:
        yield server


async def test_the_python_client_encodes_labels_and_finds_entities_with_their_vectors_as_the_library_does(
    both: tuple[TokenModel, Library], server: ScriptedServer
) -> None:
    _, library = both
    folder, oracle = str(library.folder), "encoder_client.tests.oracle"
    theirs = library_answer("gliner", f"{oracle}:encoded_labels", folder, LABELS)
    with GLiNER(server.url, concurrency=1) as model:
        vectors = model.encode_labels([*LABELS, LABELS[0]])
        assert (vectors.shape, vectors.dtype.name, vectors.digest) == ((9, 96), "float32", DIGEST)
        np.testing.assert_array_equal(vectors[8], vectors[0])
        np.testing.assert_allclose(vectors[:8], theirs, rtol=0, atol=VECTOR)
        kept, found = vectors[:8], 0
        described = {label.upper(): label for label in LABELS}
        for labels in (LABELS, described):
            given: tuple[dict[str, Any], ...] = (
                {"threshold": 0.2, "flat_ner": False, "multi_label": True},
                {"threshold": 0.4},
            )
            for options in given:
                expected = library_answer("gliner", f"{oracle}:with_embeds", folder, TEXTS, theirs, labels, **options)
                ours = model.batch_predict_with_embeds(TEXTS, kept, labels, batch_size=3, **options)
                for mine, other in zip(ours, expected, strict=True):
                    same(mine, other)
                    found += len(other)
                same(model.predict_with_embeds(TEXTS[0], kept, labels, **options), expected[0])
        assert found > 50
        # the vectors are what is scored, and only those of the same model
        turned = model.predict_with_embeds(TEXTS[0], kept[::-1], LABELS, threshold=0.2)
        (expected,) = library_answer(
            "gliner", f"{oracle}:with_embeds", folder, TEXTS[:1], theirs[::-1].copy(), LABELS, threshold=0.2
        )
        same(turned, expected)
        assert turned != model.predict_with_embeds(TEXTS[0], kept, LABELS, threshold=0.2)
        with pytest.raises(InvalidRequestError, match="is served") as caught:
            model.predict_with_embeds(TEXTS[0], LabelVectors(kept, "sha256:1"), LABELS)
        assert caught.value.param == "data.label_vectors.digest"
        with pytest.raises(InvalidRequestError, match="the label is blank") as caught:
            model.encode_labels(["a", "b", "c", "d", " "], batch_size=2)
        assert caught.value.param == "data.labels[4]"
    async with AsyncGLiNER(server.url) as awaited:
        assert np.array_equal(await awaited.encode_labels(LABELS[:2], batch_size=1), kept[:2])
        same(await awaited.predict_with_embeds(TEXTS[0], kept[::-1], LABELS, threshold=0.2), turned)
        same((await awaited.batch_predict_with_embeds(TEXTS[:1], kept[::-1], LABELS, threshold=0.2))[0], turned)
