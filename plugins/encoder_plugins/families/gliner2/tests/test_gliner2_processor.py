"""From a request's body to its answer, with planted scores in the engine's place."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel
from encoder_plugins.families.gliner2 import config, overlaps, payload, words
from encoder_plugins.families.gliner2.config import Gliner2Config
from encoder_plugins.families.gliner2.limits import LIMITS
from encoder_plugins.families.gliner2.processor import Gliner2Processor, Parsed
from encoder_plugins.families.gliner2.request import Result
from encoder_plugins.families.gliner2.tests import library
from encoder_plugins.inputs import body as bodies
from encoder_plugins.plugin import POOLING
from encoder_plugins.serving.processor import Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, advance

Plan = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a processor reads of an artifact."""
    made = tmp_path_factory.mktemp("gliner2")
    library.tokenizer().save(str(made / "tokenizer.json"))
    settings = Gliner2Config(max_width=library.WIDTHS, counting_layer="count_lstm")
    (made / "config.json").write_text(json.dumps({config.KEY: settings.to_dict()}))
    return made


def processor(folder: Path, *, tokens: int = 4096, **limits: int) -> Gliner2Processor:
    values = {limit.name: limit.default for limit in LIMITS} | limits
    context = ServingContext(
        model=folder, max_model_len=tokens, names=("extract",), limits=values, adapters=frozenset({"legal"})
    )
    return Gliner2Processor(context)


def parsed(served: Gliner2Processor, **data: Any) -> Parsed:
    return served.parse(POOLING, bodies.encode(data))


def refusal(served: Gliner2Processor, **data: Any) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        parsed(served, **data)
    return caught.value.param, caught.value.message


def table_of(item: payload.Item, plan: Plan) -> torch.Tensor:
    """Return what the pooler would return where the model has the scores of ``plan``."""
    counts = torch.zeros(len(item.spans), payload.COUNTS)
    rows: list[list[float]] = []
    for number, (span, logits, count) in enumerate(zip(item.spans, plan["scores"], plan["counts"], strict=True)):
        counts[number, count] = 1
        scores = torch.sigmoid(torch.from_numpy(logits)).numpy()
        own = len(span.fields) - span.attributes
        for step in range(min(count, 1) if span.single else count):
            wanted = (scores[step, :own] >= span.thresholds[:own, None, None]) & np.isfinite(logits[step, :own])
            for field, start, width in np.argwhere(wanted).tolist():
                more = logits[step, own:, start, width].tolist() or [0.0] * item.attributes
                rows.append([number, step, field, start, width, float(logits[step, field, start, width]), *more])
    candidates = torch.tensor(rows).reshape(-1, payload.COLUMNS + item.attributes)
    return payload.encode_output(
        counts, [torch.from_numpy(labels) for labels in plan["labels"]], candidates, item.attributes
    )


def answered(served: Gliner2Processor, request: Parsed, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the answer where the engine finds ``plans`` in the prompts."""
    running = served.run(request, ENGINE)
    found = advance(running)
    assert isinstance(found, Round)
    left, answers = iter(plans), []
    for prompt in found.prompts:
        items = payload.decode(prompt.parameters) or []
        answers.append(payload.join([table_of(item, next(left)) for item in items]))
    assert next(left, None) is None
    response = advance(running, answers)
    assert isinstance(response, Response)
    answer: dict[str, Any] = json.loads(response.body)["data"]
    assert (
        response.prompt_tokens
        == answer["usage"]["prompt_tokens"]
        == sum(len(prompt.token_ids) for prompt in found.prompts)
    )
    return answer


def plain(result: Result) -> Any:
    return json.loads(msgspec.json.encode(result))


def test_requests_are_answered_as_by_the_library(folder: Path) -> None:
    rng, numbers = random.Random(11), np.random.default_rng(11)
    served = processor(folder)
    cases: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for _ in range(40):
        pairs = [(library.random_text(rng, 9), library.random_schema(rng)) for _ in range(3)]
        threshold, policy = rng.choice([0.3, 0.5, 0.7]), rng.choice([None, *overlaps.POLICIES])
        texts, schemas = map(list, zip(*pairs, strict=True))
        request = parsed(served, texts=texts, schemas=schemas, threshold=threshold, overlap_policy=policy)
        plans = [library.plant(numbers, text.schema, part) for text in request.texts for part in text.parts]
        expected += answered(served, request, plans)["results"]
        cases += [
            {"text": text, "schema": schema, "parts": [plan], "threshold": threshold, "overlap_policy": policy}
            for (text, schema), plan in zip(pairs, plans, strict=True)
        ]
    for case, ours, theirs in zip(cases, expected, library.call("extract_each", cases), strict=True):
        assert ours == plain(library.answer_of(library.read(case["schema"]), theirs)), case


def test_long_texts_are_answered_as_by_the_library(folder: Path) -> None:
    rng, numbers = random.Random(12), np.random.default_rng(12)
    served = processor(folder)
    text = " ".join(library.random_text(rng, 9) for _ in range(150))
    schema = library.random_schema(rng)
    request = parsed(served, text=text, schema=schema, overflow="chunk")
    parts = request.texts[0].parts
    plans = [library.plant(numbers, request.texts[0].schema, part, low=-7.0) for part in parts]
    ours = answered(served, request, plans)
    theirs = library.call("extract", text, schema, plans, chunks=True)
    assert ours.pop("chunks") == len(parts) > 2
    assert ours.pop("usage")["words"] == len(words.split(text))
    assert ours == plain(library.answer_of(library.read(schema), theirs))


@pytest.mark.parametrize("overflow", ["refuse", "truncate", "chunk"])
def test_every_part_of_the_schema_is_in_every_answer(folder: Path, overflow: str) -> None:
    served = processor(folder)
    schema = {"entities": ["p"], "relations": ["r"], "structures": {"s": ["f"]}, "classifications": {"t": ["a", "b"]}}
    request = parsed(served, text="", overflow=overflow, **schema)
    (text,) = request.texts
    plan = library.plant(np.random.default_rng(0), text.schema, text.parts[0])
    plan["counts"] = [0, 0, 0]
    answer = answered(served, request, [plan])
    assert {name: answer[name] for name in ("entities", "relations", "structures")} == {
        "entities": {"p": []},
        "relations": {"r": []},
        "structures": {"s": []},
    }
    assert len(answer["classifications"]["t"]) == 1
    assert {
        name for name in answer if name not in ("entities", "relations", "structures", "classifications", "usage")
    } == {
        "refuse": set(),
        "truncate": {"truncated", "words_kept"},
        "chunk": {"chunks"},
    }[overflow]


def test_texts_that_do_not_fit(folder: Path) -> None:
    text = "Ada met Bob in Rome. " * 30
    served = processor(folder, tokens=100)
    path, message = refusal(served, text=text, entities=["p"])
    assert path == "data.text"
    assert message.endswith('the model takes 100: "overflow" can be chunk or truncate')
    _, message = refusal(served, text="w" * 500, entities=["p"], overflow="truncate")
    assert message.endswith("the model takes 100: not even the first word fits")
    assert refusal(served, texts=["x", text], entities=["p"], overflow="chunk")[0] == "data.texts[1]"
    request = parsed(served, text=text, entities=["p"], overflow="truncate")
    (prepared,) = request.texts
    assert 90 < len(request.prompts[0].token_ids) <= 100
    assert prepared.words_sent == 180
    assert prepared.words_kept == len(prepared.parts[0].words) < 100
    whole = processor(folder).prepare(request.data)
    assert list(whole.prompts[0].token_ids[: len(request.prompts[0].token_ids)]) == request.prompts[0].token_ids
    assert parsed(served, text="Ada.", entities=["p"], overflow="truncate").texts[0].words_kept == 2
    assert parsed(served, text="Ada", entities=["p"], overflow="truncate").texts[0].words_kept == 1
    assert refusal(served, text="x", entities=["p q r"] + [f"type {n}" for n in range(30)])[0] == "data"


def checked(*validators: dict[str, Any]) -> dict[str, Any]:
    """Return an entity type with validators."""
    return {"p": {"validators": [{"pattern": "x", **validator} for validator in validators]}}


def test_values_are_checked_before_they_are_compared(folder: Path) -> None:
    served = processor(folder)
    request = parsed(served, text="Ada met Bob.", entities=checked({"pattern": "met Bob|bob"}))
    logits = np.full((1, 1, 4, library.WIDTHS), 3, np.float32)
    logits[0, 0, 0, 2] = 9
    plan = {"counts": [1], "scores": [logits], "labels": []}
    (mention,) = answered(served, request, [plan])["entities"]["p"]
    assert mention["text"] in ("met Bob", "Bob")
    bad = served.run(parsed(served, text="a", entities=checked({}, {"pattern": "("})), ENGINE)
    with pytest.raises(InvalidRequest, match="missing \\)") as caught:
        advance(bad)
    assert caught.value.param == "data.entities.p.validators[1].pattern"


@pytest.mark.parametrize(
    ("limits", "data", "path", "why"),
    [
        ({"texts": 1}, {"texts": ["a", "b"]}, "data.texts", "the limit is 1"),
        ({"prompts": 2}, {"texts": ["a", "b", "c"]}, "data.texts[2]", "more than 2 parts"),
        ({"prompts": 2}, {"text": "a " * 1_000, "overflow": "chunk"}, "data.text", "more than 2 parts"),
        ({"prompt_tokens": 30}, {"texts": ["a", "b", "c"]}, "data.texts[1]", "more than 30 tokens"),
        ({"candidates": 63}, {"texts": ["a b c.", "a b c."], "threshold": 0.09}, "data.threshold", "at least 64"),
        (
            {"candidates": 150},
            {"text": "a", "entities": None, "relations": {"r": {"threshold": 0}}},
            "data",
            "at least 608",
        ),
        (
            {"patterns": 1},
            {"text": "a", "entities": checked({}, {})},
            "data",
            "2 patterns in one schema; the limit is 1",
        ),
        (
            {"pattern_characters": 3},
            {"text": "a", "entities": checked({}, {"pattern": "abcd"})},
            "data.entities.p.validators[1].pattern",
            "the limit is 3",
        ),
        (
            {},
            {"text": "a", "entities": checked({"flags": ["LOCALE"]})},
            "data.entities.p.validators[0].flags[0]",
            "'ASCII' or",
        ),
        ({}, {"text": "a", "overlap_policy": "best"}, "data.overlap_policy", "null or allow"),
        ({}, {"text": "a", "threshold": 1.5}, "data.threshold", "<= 1"),
        ({}, {"text": "a", "overflow": "cut"}, "data.overflow", "'chunk' or 'refuse' or 'truncate'"),
        ({}, {"text": "a", "schema": {"entities": ["[E]"]}, "entities": None}, "data.schema.entities.[E]", "\\[E\\]"),
    ],
)
def test_a_request_beyond_a_limit_is_refused_by_its_field(
    folder: Path, limits: dict[str, int], data: dict[str, Any], path: str, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        parsed(processor(folder, **limits), **{"entities": ["p"], **data})
    assert caught.value.param == path


def test_an_answer_beyond_the_limit_is_refused(folder: Path) -> None:
    served = processor(folder, values=3)
    request = parsed(served, text="Ada met Bob.", entities=["p"], overlap_policy="allow")
    (text,) = request.texts
    logits = np.full((1, 1, 4, library.WIDTHS), 3, np.float32)
    with pytest.raises(InvalidRequest, match="more than 3 values"):
        answered(served, request, [{"counts": [1], "scores": [logits], "labels": []}])
    assert len(text.parts[0].words) == 4


def test_another_model_or_adapter_is_unknown(folder: Path) -> None:
    served = processor(folder)
    body = {"data": {"text": "a", "entities": ["p"]}}
    with pytest.raises(UnknownModel):
        served.parse(POOLING, json.dumps(body | {"model": "other"}).encode())
    with pytest.raises(UnknownAdapter):
        served.parse(POOLING, json.dumps(body | {"lora": "other"}).encode())
    for named in ({"lora": "legal"}, {"model": "legal"}):
        assert served.parse(POOLING, json.dumps(body | named).encode()).lora == "legal"


def changed(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with a random change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        made = {name: changed(rng, part) if name == key else part for name, part in value.items()}
        if rng.random() < 0.1:
            made[rng.choice(["", key.upper(), "labels", "name"])] = made.pop(key)
        return made
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], changed(rng, value[place]), *value[place + rng.randint(0, 1) :]]
    odd: list[Any] = [
        None,
        0,
        -1,
        1.5,
        1e300,
        True,
        "",
        " ",
        "\x00",
        "[P]",
        "[SEP_TEXT]",
        "entities",
        "İ" * 300,
        [],
        {},
        [[]],
        {"": ""},
    ]
    return rng.choice([*odd, str(value) + rng.choice("\u200d\n:( "), [value], {"x": value}])


def assert_sound(served: Gliner2Processor, body: bytes, numbers: np.random.Generator) -> bool:
    """Check that a body is either answered, or refused with a field; return which."""
    try:
        request = served.parse(POOLING, body)
    except InvalidRequest as error:
        if not error.param:
            raise
        return False
    assert all(0 < len(prompt.token_ids) <= 512 for prompt in request.prompts)
    plans = [library.plant(numbers, text.schema, part) for text in request.texts for part in text.parts]
    for items, prompt in zip(request.items, request.prompts, strict=True):
        marks = token_marks.decode(prompt.parameters, len(prompt.token_ids))
        tokens = [len(prompt.token_ids)] if marks is None else marks.tokens.tolist()
        for item, count in zip(items, tokens, strict=True):
            places = [item.words, *(span.fields for span in item.spans), *item.classes]
            assert all((place >= 0).all() and (place < count).all() for place in places)
    answer = answered(served, request, plans)
    sent = request.data.texts or [request.data.text or ""]
    for text, result in zip(sent, answer.get("results", [answer]), strict=True):
        for mention in (mention for found in result["entities"].values() for mention in found):
            assert text[mention["start"] : mention["end"]] == mention["text"] != ""
    return True


def fuzz(folder: Path, count: int) -> tuple[int, int]:
    """Send random and broken requests, between them the same good one; return how many were answered and refused."""
    rng, numbers = random.Random(count), np.random.default_rng(count)
    served = processor(folder, tokens=512)
    sentinel = bodies.encode(
        {"text": "Ada met Bob in Rome.", "entities": ["p"], "structures": {"s": ["f::[x|y]"]}, "relations": {"r": "d"}}
    )
    first = served.parse(POOLING, sentinel)
    outcomes = {True: 0, False: 0}
    for number in range(count):
        data: dict[str, Any] = {
            "schema": library.random_schema(rng),
            "overflow": rng.choice(["refuse", "chunk", "truncate"]),
        }
        text = library.random_text(rng, rng.choice([5, 60]))
        data |= (
            {"text": text} if rng.random() < 0.5 else {"texts": [text, rng.choice(["", " ", "see http://", "\u200d"])]}
        )
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = changed(rng, data) if rng.random() < 0.9 else {**data, "threshold": rng.random()}
            if not isinstance(data, dict):
                data = {"data": data}
        outcomes[assert_sound(served, bodies.encode(data), numbers)] += 1
        if number % 50 == 0:
            again = served.parse(POOLING, sentinel)
            assert [prompt.token_ids for prompt in again.prompts] == [prompt.token_ids for prompt in first.prompts]
            plans = [library.plant(np.random.default_rng(1), again.texts[0].schema, again.texts[0].parts[0])]
            assert answered(served, again, plans) == answered(served, first, plans)
    return outcomes[True], outcomes[False]


def test_random_requests_are_answered_or_refused_by_field(folder: Path) -> None:
    assert min(fuzz(folder, 300)) > 50


@pytest.mark.soak
def test_ten_thousand_random_requests_are_answered_or_refused_by_field(folder: Path) -> None:
    assert min(fuzz(folder, 10_000)) > 2_000
