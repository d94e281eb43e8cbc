"""Vectors of labels in the client: whose they are is never lost without an error, and what is wrong is refused before anything is sent."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_client import ArgumentError, GLiNER, InvalidAnswerError, LabelVectors
from encoder_client.tests.scripted_server import Reply, ScriptedServer, entities

VECTORS = LabelVectors(np.arange(6.0).reshape(2, 3), "sha256:1")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("deberta_gliner_linker", entities) as server:
        yield server


def test_slices_copies_and_stored_vectors_keep_their_digest(tmp_path: Path) -> None:
    np.savez(tmp_path / "labels.npz", vectors=VECTORS, digest=str(VECTORS.digest))
    stored = np.load(tmp_path / "labels.npz")
    for found in (
        VECTORS[:],
        VECTORS[[0, 1]],
        VECTORS.copy(),
        copy.deepcopy(VECTORS),
        pickle.loads(pickle.dumps(VECTORS)),
        LabelVectors(stored["vectors"], str(stored["digest"])),
    ):
        assert isinstance(found, LabelVectors)
        assert (found.digest, found.dtype.name, found.tolist()) == ("sha256:1", "float32", VECTORS.tolist())


@pytest.mark.parametrize(
    ("vectors", "labels", "param", "message"),
    [
        (np.zeros((1, 3)), ["a"], "labels_embeddings", "no digest"),
        (np.concatenate([VECTORS, LabelVectors(VECTORS, "sha256:2")]), list("abcd"), "labels_embeddings", "no digest"),
        (VECTORS, ["a"], "labels_embeddings", "2 vectors for 1 labels"),
        (VECTORS[0], ["a", "b", "c"], "labels_embeddings", "1 dimensions"),
        (VECTORS, ["a", "a"], "labels[1]", "two vectors"),
        (VECTORS, [["a"], ["b"]], "labels[0]", "not a text"),
        (VECTORS, {"a": "x", "b": "x"}, "labels", "same description"),
    ],
)
def test_vectors_that_are_not_one_of_each_label_are_refused_by_name(
    server: ScriptedServer, vectors: Any, labels: Any, param: str, message: str
) -> None:
    with GLiNER(server.url) as model, pytest.raises(ArgumentError, match=message) as caught:
        model.predict_with_embeds("a", vectors, labels)
    assert (caught.value.param, server.posted) == (param, [])


def test_only_a_list_of_labels_is_encoded(server: ScriptedServer) -> None:
    with GLiNER(server.url) as model:
        for labels in ("person", [], {"a": "b"}, ["a", 1]):
            with pytest.raises(ArgumentError, match=r"^labels"):
                model.encode_labels(labels)  # type: ignore[arg-type]
    assert server.posted == []


def test_vectors_of_two_models_are_not_put_together(server: ScriptedServer) -> None:
    def answer(data: Any) -> Reply:
        vectors = {label: "AACAPw==" for label in data["labels"]}
        return Reply(200, {"data": {"label_vectors": {"digest": data["labels"][0], "vectors": vectors}}})

    server.handler = answer
    with GLiNER(server.url) as model:
        assert model.encode_labels(["a", "b"]).tolist() == [[1.0], [1.0]]
        with pytest.raises(InvalidAnswerError, match="another model"):
            model.encode_labels(["a", "b"], batch_size=1)


def test_models_whose_labels_are_in_the_prompt_have_no_vectors_of_them() -> None:
    with ScriptedServer("deberta_gliner", entities) as server, GLiNER(server.url) as model:
        calls: list[Any] = [
            lambda: model.encode_labels(["a"]),
            lambda: model.predict_with_embeds("a", VECTORS, ["a", "b"]),
            lambda: model.batch_predict_with_embeds(["a"], VECTORS, ["a", "b"]),
        ]
        for call in calls:
            with pytest.raises(ArgumentError, match="deberta_gliner, which does not answer the methods of bi-encoders"):
                call()
        assert server.posted == []
