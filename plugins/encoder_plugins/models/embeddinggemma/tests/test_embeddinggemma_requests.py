"""What a request may hold, which tokens a text becomes, and what is answered: without an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins import catalog
from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest, Unsupported
from encoder_plugins.families.embedding.processor import Parsed
from encoder_plugins.inputs import body as bodies
from encoder_plugins.models.embeddinggemma.checkpoint import sizes
from encoder_plugins.models.embeddinggemma.parity import PARITY
from encoder_plugins.models.embeddinggemma.processor import EmbeddingGemmaProcessor
from encoder_plugins.models.embeddinggemma.tests import tiny
from encoder_plugins.parity import plan as plans
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

# transformers and torch warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

PLUGIN = catalog.get("embeddinggemma")
POOLING, OPENAI, RERANK, *_, SCORE = PLUGIN.routes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny"))


def served(model: Path, dtype: str = "float32", **changed: int) -> EmbeddingGemmaProcessor:
    context = ServingContext(
        model=model,
        max_model_len=tiny.MAX_TOKENS,
        names=("gemma",),
        limits=limits.defaults(PLUGIN) | changed,
        dtype=dtype,
    )
    return EmbeddingGemmaProcessor(context)


@pytest.fixture(scope="module")
def processor(model: Path) -> EmbeddingGemmaProcessor:
    return served(model, texts=3, characters_per_text=200)


def tokens(of: EmbeddingGemmaProcessor, **data: Any) -> list[list[int]]:
    return list(of.parse(POOLING, bodies.encode(data)).token_ids)


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({"text": "a", "prompt_name": "code"}, "data.prompt_name", "there is: BitextMining, Class"),
        ({"text": "a", "input_type": "passage"}, "data.input_type", "'document' or 'query'"),
        ({"text": "a", "input_type": "query", "prompt": "x"}, "data.prompt", "input_type and prompt are both"),
        ({"text": "a", "prompt": "x" * 201}, "data.prompt", "the limit is 200"),
        ({"text": "a", "prompt": "x\0"}, "data.prompt", "U+0000"),
        ({"text": "a", "title": "Mars"}, "data.title", "no place for a title"),
        ({"text": "a", "title": "Mars", "input_type": "query"}, "data.title", "no place for a title"),
        ({"text": "a", "title": "", "input_type": "document"}, "data.title", "empty"),
        ({"text": "a", "titles": ["Mars"], "input_type": "document"}, "data.titles", "send title with text"),
        ({"texts": ["a"], "title": "Mars", "input_type": "document"}, "data.title", "send titles with texts"),
        ({"texts": ["a", "b"], "titles": ["Mars"], "input_type": "document"}, "data.titles", "1 titles for 2 texts"),
        (
            {"texts": ["a", "b"], "titles": [None, "x" * 201], "input_type": "document"},
            "data.titles[1]",
            "limit is 200",
        ),
        ({"texts": ["a", "b"], "titles": [None, "x"], "prompt_name": "STS"}, "data.titles[1]", "no place for a title"),
        ({"text": "a", "titles": "Mars"}, "data.titles", "array"),
        *(
            ({"text": "a", "dimensions": size}, "data.dimensions", says)
            for size, says in {
                0: ">= 1",
                -1: ">= 1",
                100: "there are: 160, 128",
                64: "160, 128",
                10**9: "160, 128",
            }.items()
        ),
        ({"text": "a", "dimensions": 128.5}, "data.dimensions", "int"),
    ],
    ids=str,
)
def test_a_bad_request_is_refused_by_field_and_limit(
    processor: EmbeddingGemmaProcessor, data: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tokens(processor, **data)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"input": "a", "dimensions": 100}, "dimensions"),
        ({"input": "a", "prompt_name": "code"}, "prompt_name"),
        ({"input": "a", "prompt_name": "STS", "input_type": "query"}, "input_type"),
        ({"input": "a", "title": "Mars"}, "title"),
    ],
    ids=str,
)
def test_a_bad_request_of_openais_shape_is_refused_by_its_own_fields(
    processor: EmbeddingGemmaProcessor, data: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        processor.parse(OPENAI, json.dumps(data).encode())
    assert caught.value.param == param


def test_a_prompt_can_be_chosen_in_openais_shape(processor: EmbeddingGemmaProcessor) -> None:
    for choice in ({"input_type": "document"}, {"prompt_name": "Clustering"}, {}):
        parsed = processor.parse(OPENAI, json.dumps({"input": ["a b"], **choice}).encode())
        assert list(parsed.token_ids) == tokens(processor, texts=["a b"], **choice)


def test_sizes_are_those_of_the_model_card() -> None:
    assert sizes(768) == (768, 512, 256, 128)
    assert sizes(300) == (300, 256, 128)
    assert sizes(64) == (64,)


def test_tokens_are_those_of_the_reference(model: Path) -> None:
    own = served(model)
    cases = [case for case in PARITY.cases(model, ()) if not case["id"].startswith("size-")]
    oracle = "encoder_plugins.families.embedding.tests.oracle:token_ids"
    whole = [_prompt(case) + case["text"] for case in cases]
    for case, ids in zip(cases, library_answer("sentence_transformers", oracle, str(model), whole), strict=True):
        data = {name: case[name] for name in ("text", "prompt_name", "input_type", "prompt", "title")}
        assert tokens(own, **data) == [ids], case["id"]
    cut = next(case for case in cases if case["id"] == "query-beyond-limit")
    assert len(tokens(own, text=cut["text"], input_type="query")[0]) == tiny.MAX_TOKENS


def _prompt(case: Mapping[str, Any]) -> str:
    """Return what the model card says about a case."""
    if case["title"] is not None:
        return f"title: {case['title']} | text: "
    if case["prompt"] is not None:
        return str(case["prompt"])
    name = case["input_type"] or case["prompt_name"]
    return "" if name is None else tiny.PROMPTS[name]


def test_a_vector_that_is_cut_has_length_1_unless_the_request_says_otherwise(
    processor: EmbeddingGemmaProcessor,
) -> None:
    pooled = torch.arange(1.0, 161.0)
    expected = pooled[:128] / pooled[:128].norm()

    def answer(request: Parsed) -> np.ndarray[Any, Any]:
        running: Running = processor.run(request, ENGINE)
        assert isinstance(advance(running), Round)
        response: Any = advance(running, [pooled])
        answered = json.loads(response.body)["data"]
        return np.array(answered[0]["embedding"] if request.openai else answered["embeddings"][0], np.float32)

    for normalize in (None, True):
        data = bodies.encode({"text": "a", "dimensions": 128, "normalize": normalize})
        np.testing.assert_allclose(answer(processor.parse(POOLING, data)), expected, rtol=1e-6)
    cut = processor.parse(OPENAI, b'{"input": "a", "dimensions": 128}')
    np.testing.assert_allclose(answer(cut), expected, rtol=1e-6)
    raw = processor.parse(POOLING, bodies.encode({"text": "a", "dimensions": 128, "normalize": False}))
    np.testing.assert_array_equal(answer(raw), pooled[:128])
    whole = processor.parse(POOLING, bodies.encode({"text": "a"}))
    np.testing.assert_allclose(answer(whole), pooled / pooled.norm(), rtol=1e-6)


def test_texts_share_prompts_and_get_their_own_vectors(model: Path) -> None:
    of = served(model)
    half = "word " * (tiny.MAX_TOKENS // 4)
    request = of.parse(POOLING, bodies.encode({"texts": ["a", half, half], "normalize": False}))
    one, two, three = map(len, request.token_ids)
    assert one + two <= tiny.MAX_TOKENS < one + two + three
    running: Running = of.run(request, ENGINE)
    sent = advance(running)
    assert isinstance(sent, Round)
    first, second = sent.prompts
    assert first.token_ids == [*request.token_ids[0], *request.token_ids[1]]
    marks = token_marks.decode(first.parameters, one + two)
    assert marks is not None
    assert (marks.tokens.tolist(), second.parameters) == ([one, two], None)
    vectors = torch.arange(3.0)[:, None].repeat(1, tiny.WIDTH)
    response = advance(running, [vectors[:2], vectors[2]])
    assert isinstance(response, Response)
    assert json.loads(response.body)["data"]["embeddings"] == vectors.tolist()
    unanswered: Running = of.run(request, ENGINE)
    advance(unanswered)
    with pytest.raises(RuntimeError, match="2 vectors of 3"):
        advance(unanswered, [vectors[0], vectors[2]])


def test_every_request_of_the_parity_check_is_accepted(model: Path) -> None:
    own, cases = served(model), PARITY.cases(model, ())
    assert len(cases) == len({case["id"] for case in cases}) >= 60
    routes = {route.path: route for route in PLUGIN.routes}
    for step in plans.plan(PARITY, cases):
        for batch in step.batches:
            body = json.dumps({"model": "gemma", **PARITY.body(batch.cases, batch.variant)}).encode()
            texts = sum(1 + len(case["documents"] or ()) for case in batch.cases)
            assert len(own.parse(routes[batch.variant.route], body).token_ids) == texts


def test_a_users_own_cases_are_completed_or_refused(model: Path) -> None:
    (case,) = [
        case
        for case in PARITY.cases(model, [{"id": "mine", "text": "a", "input_type": "document", "title": "Mars"}])
        if case["id"] == "mine"
    ]
    assert (case["title"], case["dimensions"], case["prompt"]) == ("Mars", None, None)
    for wrong, says in (
        ({"text": ""}, "text is empty"),
        ({"text": 3}, "text is no text"),
        ({"text": "a", "title": 3}, "title is no text"),
        ({"text": "a", "title": "Mars"}, "no place for a title"),
        ({"text": "a", "prompt_name": "code"}, "no prompt 'code'"),
        ({"text": "a", "input_type": "passage"}, "input_type is none of"),
        ({"text": "a", "dimensions": 100}, "dimensions is not one of 160, 128"),
        ({"text": "a", "normalize": "yes"}, "normalize is none of"),
        ({"text": "a", "documents": []}, "documents is not a list of 1 to 64"),
        ({"text": "a", "documents": ["b"], "dimensions": 128}, "dimensions is there, too"),
    ):
        with pytest.raises(Unsupported, match=says):
            PARITY.cases(model, [wrong])


def test_float16_is_refused_with_the_reason(model: Path) -> None:
    with pytest.raises(Unsupported, match=r"dtype=float16.*65504.*bfloat16, float32"):
        served(model, "float16")
