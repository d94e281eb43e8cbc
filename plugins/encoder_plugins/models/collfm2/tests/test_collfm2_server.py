"""Rows and scores of pages over HTTP, against the library, with images that are tiled and not. One real server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.families.vision.cases import picture
from encoder_plugins.models.collfm2.tests import tiny
from encoder_plugins.serving.tests import servers
from encoder_plugins.serving.tests.servers import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUERY = "Which page has a table of prices?"
# tiled, tiled and wide, and in one view
PAGE, WIDE, SMALL = picture(620, 877, 1), picture(1500, 200, 2), picture(30, 40, 3)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))[0]


@pytest.fixture(scope="module")
def server(published: Path) -> Iterator[Server]:
    artifact = servers.prepare("collfm2", published, published.parent / ("a" * 64))
    with servers.running(artifact, name="pages") as started:
        yield started


def expected(published: Path, **case: Any) -> NDArray[np.float32]:
    """Return what the library computes for a case."""
    whole = {"id": "one", "text": None, "image": None, "documents": None, "input_type": "document", **case}
    found: NDArray[np.float32] = library_answer(
        "sauerkrautlm_colpali", "encoder_plugins.families.vision.tests.oracle:output", "collfm2", str(published), whole
    )
    return found


def test_rows_and_scores_are_those_of_the_library(server: Server, published: Path) -> None:
    cases: list[dict[str, Any]] = [{"image": PAGE}, {"text": "A text."}, {"image": WIDE}, {"image": SMALL}]
    answer = server.answer(inputs=cases)
    for case, rows in zip(cases, answer["embeddings"], strict=True):
        np.testing.assert_allclose(rows, expected(published, **case), rtol=0, atol=1e-5)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, answer["embeddings"]))
    query = server.answer(text=QUERY, input_type="query")["embeddings"][0]
    np.testing.assert_allclose(query, expected(published, text=QUERY, input_type="query"), rtol=0, atol=1e-5)
    documents: list[Any] = [{"image": PAGE}, "A text about prices.", {"image": SMALL}]
    scored = server.answer(query=QUERY, documents=documents)["results"][0]
    reference = expected(published, text=QUERY, input_type="query", documents=documents)
    np.testing.assert_allclose(scored["scores"], reference[scored["indices"]], rtol=1e-5)


def test_requests_with_images_and_without_do_not_change_each_other(server: Server) -> None:
    requests: list[dict[str, Any]] = [
        *({"image": image} for image in (PAGE, WIDE, SMALL)),
        *({"text": text, "input_type": "query"} for text in (QUERY, "bread", "a b c " * 30)),
    ]
    alone = [server.answer(**data) for data in requests]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda data: server.answer(**data), requests * 3))
    for number, found in enumerate(together):
        reference = alone[number % len(requests)]
        assert found["usage"] == reference["usage"]
        np.testing.assert_allclose(found["embeddings"][0], reference["embeddings"][0], rtol=0, atol=1e-5)


def test_what_the_model_would_misread_is_refused_and_the_server_goes_on(server: Server) -> None:
    before = server.answer(image=SMALL)
    for data, param, says in (
        ({"inputs": ["a", {"text": "b <image> c"}]}, "data.inputs[1]", "contains <image>"),
        ({"text": "<|img_row_1_col_2|>", "input_type": "query"}, "data.text", "contains <|img_row_1_col_2|>"),
        ({"query": QUERY, "documents": ["<|im_end|>"]}, "data.documents[0]", "contains <|im_end|>"),
        ({"images": [SMALL, picture(3000, 20)]}, "data.images[1]", "too narrow for this model"),
    ):
        error = server.refusal(**data)
        assert (error["param"], says in error["message"]) == (param, True), error
    assert server.answer(image=SMALL) == before
