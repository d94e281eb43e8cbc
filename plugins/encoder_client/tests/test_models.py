"""The methods of each family: what is sent for their arguments, what comes back, and which arguments are refused by name."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_client import (
    ArgumentError,
    AsyncGLiNER,
    AsyncGLiNER2,
    AsyncMultiVectorEncoder,
    AsyncSentenceTransformer,
    GLiNER,
    GLiNER2,
    InvalidAnswerError,
    MultiVectorEncoder,
    SentenceTransformer,
    TruncationWarning,
)
from encoder_client.tests.scripted_server import Reply, ScriptedServer, entities, numbered, refusal, vectors


@pytest.fixture
def ner() -> Iterator[ScriptedServer]:
    with ScriptedServer("deberta_gliner", entities) as server:
        yield server


@pytest.fixture
def minilm() -> Iterator[ScriptedServer]:
    with ScriptedServer("sentence_transformer", vectors) as server:
        yield server


def row_vectors(data: Any) -> Reply:
    """Answer each text with as many rows as it has characters, or each document with its length as the score."""
    if "documents" in data:
        scores = np.array([len(text) for text in data["documents"]])
        best = np.argsort(-scores, kind="stable")[: data.get("top_k")]
        results = [{"indices": best.tolist(), "scores": scores[best].tolist()}]
        return Reply(200, {"data": {"results": results, "usage": {}}})
    counts = [len(text) for text in data["texts"]]
    found = np.concatenate([np.full((len(text), 2), ord(text[0]), "<f4") for text in data["texts"]])
    headers = {"x-encoder-shape": f"{sum(counts)},2", "x-encoder-dtype": "float32"}
    return Reply(200, found.tobytes(), {**headers, "x-encoder-rows": ",".join(map(str, counts))})


@pytest.fixture
def colbert() -> Iterator[ScriptedServer]:
    with ScriptedServer("moderncolbert", row_vectors) as server:
        yield server


def only(server: ScriptedServer) -> Mapping[str, Any]:
    """Return the `data` of the only request."""
    (request,) = server.posted
    found: Mapping[str, Any] = request.data
    return found


def test_blank_texts_have_no_entities_and_are_not_sent(ner: ScriptedServer) -> None:
    with GLiNER(ner.url) as model:
        found = model.inference(["", "a b", " \n", "c"], ["x"])
        assert [[entity["text"] for entity in each] for each in found] == [[], ["a b"], [], ["c"]]
        assert only(ner)["texts"] == ["a b", "c"]
        assert model.inference([" "], ["x"]) == [[]]
        assert model.inference([], ["x"]) == []
        assert model.predict_entities("", ["x"]) == []
        assert len(ner.posted) == 1
        assert [len(each) for each in model.inference("a", ["x"])] == [1]


def test_the_arguments_of_gliner_are_the_fields_of_the_request(ner: ScriptedServer) -> None:
    with GLiNER(ner.url) as model:
        span: Any = {"start": 0, "end": 1, "text": "a"}
        model.predict_entities(
            "a", ["x", "y"], False, 0.25, True, True, input_spans=[[span]], overflow="chunk", language="de"
        )
    assert only(ner) == {
        "texts": ["a"],
        "labels": ["x", "y"],
        "flat_ner": False,
        "threshold": 0.25,
        "multi_label": True,
        "return_class_probs": True,
        "input_spans": [[{"start": 0, "end": 1}]],
        "overflow": "chunk",
        "language": "de",
    }


def test_the_defaults_are_those_of_gliner(ner: ScriptedServer) -> None:
    with GLiNER(ner.url) as model:
        model.predict_entities("a", "x")
        model.inference(["a"] * 9, ["x"])
    defaults = {"labels": ["x"], "flat_ner": True, "threshold": 0.5, "multi_label": False, "overflow": "truncate"}
    assert [request.data | {"texts": None} for request in ner.posted] == [defaults | {"texts": None}] * 3
    assert sorted(len(request.data["texts"]) for request in ner.posted) == [1, 1, 8]


def test_labels_may_have_descriptions_and_be_the_texts_own(ner: ScriptedServer) -> None:
    ner.handler = described
    with GLiNER(ner.url) as model:
        shared = {"PER": "a human being", "ORG": "a company"}
        (entity,) = model.predict_entities("Tim", shared, return_class_probs=True)
        assert (entity["label"], entity["class_probs"]) == ("PER", {"PER": 0.9, "ORG": 0.1})
        lists: Any = [["x"], {"CITY": "a town"}, ["z"]]
        found = model.inference(["a", " ", "b"], lists, batch_size=1)
        assert [[entity["label"] for entity in each] for each in found] == [["x"], [], ["z"]]
        found = model.inference(["a", "b", "c"], lists)
        assert [[entity["label"] for entity in each] for each in found] == [["x"], ["CITY"], ["z"]]
    assert ner.posted[-1].data["labels_per_text"] == [["x"], ["a town"], ["z"]]


def test_arguments_may_be_numbers_of_numpy(ner: ScriptedServer) -> None:
    span: Any = {"start": np.int64(0), "end": np.int64(1)}
    threshold: Any = np.float32(0.25)
    with GLiNER(ner.url) as model:
        model.predict_entities("a", ["x"], threshold=threshold, input_spans=[[span]])
    assert (only(ner)["threshold"], only(ner)["input_spans"]) == (0.25, [[{"start": 0, "end": 1}]])


def test_labels_may_be_an_iterator(ner: ScriptedServer) -> None:
    labels: Any = map(str.lower, ["X", "Y"])
    with GLiNER(ner.url) as model:
        assert [entity["label"] for entity in model.predict_entities("a", labels)] == ["x"]
    assert only(ner)["labels"] == ["x", "y"]


def described(data: Any) -> Reply:
    reply = entities(data)
    for result in reply.body["data"]["results"]:
        for entity in result["entities"]:
            names = data.get("labels") or [entity["label"]]
            entity["class_probs"] = dict(zip(names, (0.9, 0.1), strict=False))
    return reply


def test_a_text_that_was_cut_is_a_warning(ner: ScriptedServer) -> None:
    def cut(data: Any) -> Reply:
        reply = entities(data)
        reply.body["data"]["results"][-1] |= {"truncated": True, "words_kept": 384}
        return reply

    ner.handler = cut
    with GLiNER(ner.url) as model, pytest.warns(TruncationWarning, match=r"texts\[2\].*384"):
        model.inference(["a", "", "b"], ["x"])
    assert only(ner)["overflow"] == "truncate"


def test_an_older_name_of_inference_is_deprecated_as_in_the_library(ner: ScriptedServer) -> None:
    with GLiNER(ner.url) as model, pytest.warns(FutureWarning):
        assert len(model.batch_predict_entities(["a", "b"], ["x"])) == 2


async def test_former_names_of_sentence_transformers_are_deprecated_as_in_the_library(minilm: ScriptedServer) -> None:
    sentences: Any = {"sentences": ["a", "bc"]}
    with SentenceTransformer(minilm.url, truncate_dim=2) as model:
        for encode in (model.encode, model.encode_query, model.encode_document):
            with pytest.warns(FutureWarning, match="use inputs"):
                np.testing.assert_array_equal(encode(**sentences), [numbered("a"), numbered("bc")])
        assert model.get_embedding_dimension() == 3
        assert minilm.posted[-1].data["dimensions"] == 2
        with pytest.warns(FutureWarning, match="use get_embedding_dimension"):
            assert model.get_sentence_embedding_dimension() == 3
    async with AsyncSentenceTransformer(minilm.url) as awaited:
        with pytest.warns(FutureWarning, match="use inputs"):
            np.testing.assert_array_equal(await awaited.encode(**sentences), [numbered("a"), numbered("bc")])
        assert await awaited.get_embedding_dimension() == 3


def test_the_length_of_rows_is_that_of_their_vectors(colbert: ScriptedServer) -> None:
    with MultiVectorEncoder(colbert.url) as model:
        assert model.get_embedding_dimension() == 2


def test_candidates_come_back_with_their_ids() -> None:
    def ids(data: Any) -> Reply:
        results = [
            {
                "entities": [
                    {"start": 0, "end": 1, "text": "a", "label": each[0]["label"], "score": 0.5, "id": each[0]["id"]}
                ]
            }
            for each in data["candidates_per_text"]
        ]
        return Reply(200, {"data": {"results": results}})

    lists = [[{"id": "Q1", "label": "x"}], [{"id": "Q2", "label": "y"}]]
    with ScriptedServer("modernbert_gliner_rerank", ids) as server, GLiNER(server.url) as model:
        found = model.inference(["a", "b"], [], candidates_per_text=lists, max_labels=2, batch_size=1)
        assert [each[0]["id"] for each in found] == ["Q1", "Q2"]
        assert sorted(request.data["candidates_per_text"][0][0]["id"] for request in server.posted) == ["Q1", "Q2"]
        assert {request.data["max_labels"] for request in server.posted} == {2}
        with pytest.raises(ArgumentError) as caught:
            model.predict_entities("a", ["x"], return_class_probs=True)
        assert caught.value.param == "return_class_probs"
        with pytest.raises(ArgumentError) as caught:
            model.inference(["a", "b"], ["x"], candidates_per_text=lists)
        assert caught.value.param == "labels"


def test_a_label_set_stands_for_labels_and_its_ids_for_candidates() -> None:
    def one(data: Any) -> Reply:
        entity = {"start": 0, "end": 1, "text": "a", "label": "x", "score": 0.5, "id": "Q1"}
        return Reply(200, {"data": {"results": [{"entities": [entity]} for _ in data["texts"]]}})

    with ScriptedServer("deberta_gliner_linker", one) as server, GLiNER(server.url) as model:
        assert model.predict_entities("a", [], label_set="catalogue")[0]["id"] == "Q1"
        model.inference(["a", "b"], [], label_set="catalogue", candidates_per_text=[["Q1"], ["Q2", "Q3"]])
        whole, some = (request.data for request in server.posted)
        assert (whole["label_set"], "labels" in whole, "candidates_per_text" in whole) == ("catalogue", False, False)
        assert (some["label_set"], some["candidates_per_text"]) == ("catalogue", [["Q1"], ["Q2", "Q3"]])
        with pytest.raises(ArgumentError) as caught:
            model.inference(["a"], ["x"], label_set="catalogue")
        assert caught.value.param == "labels"


GLINER: Any = {
    "label_set": {"label_set": "catalogue", "labels": []},
    "packing_config": {"packing_config": object()},
    "return_vectors": {"return_vectors": True},
    "return_label_vectors": {"return_label_vectors": True},
    "candidates_per_text": {"candidates_per_text": [[]]},
    "max_labels": {"max_labels": 3},
    "batch_size": {"batch_size": 0},
    "input_spans": {"input_spans": []},
    "threshold": {"threshold": float("nan")},
    "labels": {"labels": {"a": "same", "b": "same"}},
    "labels[1]": {"labels": ["a", 1]},
    "texts[0]": {"texts": ["half \ud800"]},
    "input_spans[0][1]": {"input_spans": [[{"start": 0, "end": 1}, {"start": 0}]]},
}


@pytest.mark.parametrize("labels", [None, 5])
def test_what_are_no_labels_is_refused_by_name(ner: ScriptedServer, labels: Any) -> None:
    with GLiNER(ner.url) as model:
        with pytest.raises(ArgumentError, match=f"it is {type(labels).__name__}, not labels") as caught:
            model.predict_entities("a", labels)
        assert caught.value.param == "labels"


@pytest.mark.parametrize("number", [0, -1, 2.5, "2", float("nan")])
@pytest.mark.parametrize("name", ["batch_size", "truncate_dim"])
@pytest.mark.parametrize("plugin", ["sentence_transformer", "embeddinggemma"])
def test_what_cannot_count_things_is_refused_by_name(plugin: str, name: str, number: Any) -> None:
    with ScriptedServer(plugin, vectors) as server, SentenceTransformer(server.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.encode(["a"], **{name: number})
        assert caught.value.param == name
        assert server.posted == []


@pytest.mark.parametrize("param", GLINER)
def test_what_gliner_servers_cannot_honour_is_refused_by_name(ner: ScriptedServer, param: str) -> None:
    with GLiNER(ner.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.inference(**{"texts": ["a"], "labels": ["x"], **GLINER[param]})
        assert caught.value.param == param
        assert ner.posted == []


def test_a_request_with_too_many_entities_is_halved(ner: ScriptedServer) -> None:
    def few(data: Any) -> Reply:
        return refusal(400, "too many", "data.threshold") if len(data["texts"]) > 1 else entities(data)

    ner.handler = few
    with GLiNER(ner.url) as model:
        assert [each[0]["text"] for each in model.inference(list("abcde"), ["x"])] == list("abcde")


def test_vectors_have_the_shapes_of_the_library(minilm: ScriptedServer) -> None:
    with SentenceTransformer(minilm.url, truncate_dim=7) as model:
        one, several, none = model.encode("ab"), model.encode(("ab", "c")), model.encode([])
        np.testing.assert_array_equal(one, numbered("ab"))
        np.testing.assert_array_equal(several, [numbered("ab"), numbered("c")])
        assert {one.dtype, several.dtype} == {np.dtype(np.float32)}
        assert len(none) == 0
        # a view of the body, and writable
        assert not several.flags.owndata
        one /= 2
        model.encode_query("a", normalize_embeddings=True, truncate_dim=5, precision="int8")
        model.encode_document("a", prompt_name="passage")
    assert [request.data for request in minilm.posted[2:]] == [
        {"texts": ["a"], "encoding": "bytes", "embedding_dtype": "int8", "normalize": True, "dimensions": 5}
        | {"input_type": "query"},
        {"texts": ["a"], "encoding": "bytes", "embedding_dtype": "float32", "dimensions": 7, "prompt_name": "passage"},
    ]


def test_vectors_that_a_server_would_normalise_are_cut_here() -> None:
    with ScriptedServer("embeddinggemma", vectors) as server, SentenceTransformer(server.url) as model:
        np.testing.assert_array_equal(model.encode(["ab"], truncate_dim=2, prompt="p: "), [numbered("ab")[:2]])
        assert "dimensions" not in only(server)
        assert only(server)["prompt"] == "p: "
        model.encode("a", truncate_dim=2, normalize_embeddings=True, prompt="p", prompt_name="ignored")
        assert {"dimensions": 2, "normalize": True, "prompt": "p"}.items() <= server.posted[1].data.items()
        assert "prompt_name" not in server.posted[1].data
        with pytest.raises(ArgumentError) as caught:
            model.encode("a", truncate_dim=2, precision="int8")
        assert caught.value.param == "normalize_embeddings"
        # signs do not depend on the length
        model.encode("a", truncate_dim=2, precision="ubinary")
        assert {"dimensions": 2, "embedding_dtype": "ubinary"}.items() <= server.posted[2].data.items()


ENCODE: Any = {
    "prompt": {"prompt": "p: "},
    "output_value": {"output_value": "token_embeddings"},
    "precision": {"precision": "int4"},
    "convert_to_numpy": {"convert_to_numpy": False},
    "convert_to_tensor": {"convert_to_tensor": True},
    "device": {"device": "cuda"},
    "pool": {"pool": {}},
    "chunk_size": {"chunk_size": 3},
    "batch_size": {"batch_size": 0},
    "inputs[1]": {"inputs": ["a", {"image": "b"}]},
    "prompt_name": {"prompt_name": float("nan")},
}


@pytest.mark.parametrize("param", ENCODE)
def test_what_servers_of_vectors_cannot_honour_is_refused_by_name(minilm: ScriptedServer, param: str) -> None:
    with SentenceTransformer(minilm.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.encode(**{"inputs": ["a"], **ENCODE[param]})
        assert caught.value.param == param
        assert minilm.posted == []


def test_rows_are_lists_of_arrays(colbert: ScriptedServer) -> None:
    with MultiVectorEncoder(colbert.url) as model:
        found = model.encode_document(["ab", "c", "def"], batch_size=2, pool_factor=2)
        assert [(rows.shape, rows[0, 0]) for rows in found] == [((2, 2), 97), ((1, 2), 99), ((3, 2), 100)]
        assert model.encode_query("ab").shape == (2, 2)
        assert model.encode_query([]) == []
        model.encode_document("a", prompt_name="passage")
        (unit,) = model.encode_query(["a"], normalize_embeddings=True)
        np.testing.assert_allclose(unit, [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
    first, *_, named, last = (request.data for request in colbert.posted)
    assert named == {"texts": ["a"], "input_type": "document", "prompt_name": "passage", "encoding": "bytes"}
    assert (first["input_type"], first["pool_factor"], first["encoding"]) == ("document", 2, "bytes")
    assert last == {"texts": ["a"], "input_type": "query", "encoding": "bytes"}


@pytest.mark.parametrize("one", [{"text": "a"}, b"abc", None, 3, {"a", "b"}, np.array("abc"), Path("a.png")])
def test_what_is_not_a_list_is_refused_and_not_taken_apart(
    one: Any, minilm: ScriptedServer, colbert: ScriptedServer, ner: ScriptedServer
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "inputs": lambda: SentenceTransformer(minilm.url).encode(one),
        "documents": lambda: MultiVectorEncoder(colbert.url).rank("a", one),
        "texts": lambda: GLiNER(ner.url).inference(one, ["x"]),
    }
    for param, call in calls.items():
        with pytest.raises(ArgumentError, match=f"it is {type(one).__name__}; send a list") as caught:
            call()
        assert caught.value.param == param
    # characters would be ranked
    with pytest.raises(ArgumentError, match="it is str; send a list"):
        MultiVectorEncoder(colbert.url).rank("a", "abc")


def test_documents_of_several_requests_are_ranked_together(colbert: ScriptedServer) -> None:
    documents = ["bb", "a", "cccc", "dd", "eee"]
    with MultiVectorEncoder(colbert.url) as model:
        found = model.rank("q", documents, top_k=4, return_documents=True, batch_size=2)
    assert found == [
        {"corpus_id": 2, "score": 4, "text": "cccc"},
        {"corpus_id": 4, "score": 3, "text": "eee"},
        {"corpus_id": 0, "score": 2, "text": "bb"},
        {"corpus_id": 3, "score": 2, "text": "dd"},
    ]
    assert sorted(len(request.data["documents"]) for request in colbert.posted) == [1, 2, 2]
    with MultiVectorEncoder(colbert.url) as model:
        assert [each["corpus_id"] for each in model.rank("q", ["a"] * 300)] == list(range(300))
    assert sorted(len(request.data["documents"]) for request in colbert.posted[3:]) == [44, 128, 128]


def test_rows_of_other_texts_are_no_answer(colbert: ScriptedServer) -> None:
    colbert.handler = lambda data: row_vectors({"texts": ["a", "b"]})
    with MultiVectorEncoder(colbert.url) as model, pytest.raises(InvalidAnswerError, match="rows of 2 texts for 1"):
        model.encode_query("a")


ROWS: Any = {
    "prompt": {"prompt": ""},
    "convert_to_numpy": {"convert_to_numpy": False},
    "device": {"device": "cpu"},
    "token_pooling": {"token_pooling": object()},
    "normalize_embeddings": {"normalize_embeddings": True, "pool_factor": 2},
    "output_value": {"output_value": None},
}


@pytest.mark.parametrize("param", ROWS)
def test_what_servers_of_rows_cannot_honour_is_refused_by_name(colbert: ScriptedServer, param: str) -> None:
    with MultiVectorEncoder(colbert.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.encode_document(**{"inputs": ["a"], **ROWS[param]})
        assert caught.value.param == param
        wrong: dict[str, Any] = {"top_k": 0, "prompt": "p", "prompt_name": "query", "device": "cpu", "batch_size": 0}
        for name, value in wrong.items():
            with pytest.raises(ArgumentError) as caught:
                model.rank("q", ["a"], **{name: value})
            assert caught.value.param == name
        assert colbert.posted == []


def test_a_server_of_another_family_is_refused(
    ner: ScriptedServer, minilm: ScriptedServer, colbert: ScriptedServer
) -> None:
    for call in (
        lambda: GLiNER(minilm.url).predict_entities("a", ["x"]),
        lambda: SentenceTransformer(ner.url).encode("a"),
        lambda: SentenceTransformer(colbert.url).encode("a"),
        lambda: MultiVectorEncoder(minilm.url).encode_query("a"),
        lambda: MultiVectorEncoder(ner.url).rank("a", ["b"]),
    ):
        with pytest.raises(ArgumentError, match="runs the plugin") as caught:
            call()
        assert caught.value.param == "url"


@pytest.mark.parametrize("body", [b"[]", b'{"data": 1}', b'{"data": {"results": []}}', b'{"data": {"results": [1]}}'])
def test_an_answer_of_another_shape_is_an_error(ner: ScriptedServer, body: bytes) -> None:
    ner.handler = lambda data: Reply(200, body)
    with GLiNER(ner.url) as model, pytest.raises(InvalidAnswerError):
        model.predict_entities("a", ["x"])


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [
        (GLiNER, AsyncGLiNER),
        (SentenceTransformer, AsyncSentenceTransformer),
        (MultiVectorEncoder, AsyncMultiVectorEncoder),
        (GLiNER2, AsyncGLiNER2),
    ],
)
def test_both_kinds_of_a_class_have_the_same_methods(plain: type, awaited: type) -> None:
    own = {name: value for name, value in vars(plain).items() if inspect.isfunction(value) and name[0] != "_"}
    own = {
        name: value for name, value in own.items() if name not in ("context", "batch_predict_entities", "create_schema")
    }
    for name, function in own.items():
        other = getattr(awaited, name)
        assert inspect.iscoroutinefunction(other)
        assert inspect.signature(function) == inspect.signature(other)
        assert function.__doc__ == other.__doc__
        assert function.__name__ == other.__name__ == name
        assert "context:" not in (function.__doc__ or "")


def test_a_progress_bar_counts_the_texts(ner: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    with GLiNER(ner.url) as model:
        model.inference(["a"] * 20, ["x"], batch_size=3, show_progress_bar=True)
        assert "20/20" in capsys.readouterr().err
        model.inference(["a"] * 20, ["x"])
        logging.getLogger("encoder_client").setLevel(logging.WARNING)
        model.inference(["a"] * 20, ["x"], show_progress_bar=None)
        assert capsys.readouterr().err == ""


def test_the_client_imports_no_torch_and_nothing_of_the_server() -> None:
    program = (
        "import sys, encoder_client, encoder_client.__main__\n"
        "found = {'torch', 'vllm', 'msgspec', 'pydantic', 'encoder_plugins', 'tqdm'} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
