"""Pages of PDFs among the inputs of a request, and pages that come again: without an engine."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.vision.processor import VisualProcessor
from encoder_plugins.inputs.pdf import Pdf, PdfRenderer
from encoder_plugins.inputs.tests.pdfs import pdf
from encoder_plugins.models.colqwen3.checkpoint import CHECKPOINT
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.models.colqwen3.tests.test_colqwen3_requests import IMAGE, PDF, begun, image_bytes, served
from encoder_plugins.serving.processor import Response
from encoder_plugins.serving.rounds import advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    CHECKPOINT.convert(tiny.build(tmp_path_factory.mktemp("published")), {}, folder)
    return folder


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Collect the number and the dots per inch of each page that is rendered."""
    found: list[tuple[int, int]] = []
    pages = PdfRenderer.pages

    def noted(of: PdfRenderer, pdfs: Mapping[str, Pdf]) -> Generator[tuple[str, int, Image.Image], None, None]:
        for path, number, image in pages(of, pdfs):
            found.append((number, pdfs[path].dpi))
            yield path, number, image

    monkeypatch.setattr(PdfRenderer, "pages", noted)
    return found


def pixels_of(of: VisualProcessor, **data: Any) -> list[bytes | None]:
    """Return the pixels of a request's prompts."""
    return [image_bytes(prompt) for prompt in begun(of, {**data, "encoding": "base64"})[1].prompts]


def test_a_page_that_comes_again_is_neither_rendered_nor_scaled(model: Path, rendered: list[tuple[int, int]]) -> None:
    of, none = served(model), served(model, image_cache_bytes=1)
    first, second = pixels_of(none, pdf=PDF)
    assert (rendered, first != second) == ([(1, 144), (2, 144)], True)
    rendered.clear()
    # the pages that are missing, in the order of the request
    assert pixels_of(of, pdf=PDF, pages="2") == [second]
    assert pixels_of(of, pdf=PDF, pages="2,1") == [second, first]
    assert rendered == [(2, 144), (1, 144)]
    # how many there are is not known before all have been rendered
    assert pixels_of(of, pdf=PDF) == pixels_of(of, pdf=PDF) == [first, second]
    assert rendered == [(2, 144), (1, 144), (1, 144), (2, 144)]
    rendered.clear()
    scored = begun(of, {"query": "a", "documents": [{"pdf": PDF, "pages": "2"}, "b", {"pdf": PDF}]})[0]
    documents = advance(scored, [torch.ones(16, tiny.DIMENSIONS)])
    assert [image_bytes(prompt) for prompt in documents.prompts] == [second, None, first, second]  # type: ignore[union-attr]
    assert rendered == []
    # other dots, and another file, are other pixels
    assert pixels_of(of, pdf=PDF, pages="1", dpi=72) != [first]
    other = base64.b64encode(pdf((b"0 0 200 300", b"0 0 100 101"))).decode()
    pixels_of(of, inputs=[{"pdf": other, "pages": "2"}, {"pdf": PDF, "pages": "1"}])
    assert rendered == [(1, 72), (2, 144)]
    # nothing is kept
    assert pixels_of(none, pdf=PDF) == pixels_of(none, pdf=PDF) == [first, second]
    assert len(rendered) == 6


def test_pages_that_are_kept_count_as_those_that_are_rendered(model: Path) -> None:
    of = served(model, 200, pdf_pages=3)
    pixels_of(of, pdf=PDF, dpi=50)
    for data, param, says in (
        (
            {"inputs": [{"pdf": PDF, "dpi": 50}, {"pdf": PDF, "dpi": 50}]},
            "data.inputs[1].pages",
            "those before it have 2",
        ),
        ({"pdf": PDF, "dpi": 50, "pages": "1,3"}, "data.pages", "page 3 is not there: the PDF has 2"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            begun(of, data)
        assert (refused.value.param, says in refused.value.message) == (param, True), refused.value.message


def test_pages_of_pdfs_among_inputs_have_rows_in_the_order_of_the_inputs(model: Path) -> None:
    of = served(model)
    inputs = ["a text", {"pdf": PDF, "pages": "2,1"}, {"image": IMAGE}, {"pdf": PDF}, "another one"]
    places = [0, 1, 1, 2, 3, 3, 4], [None, 2, 1, None, 1, 2, None]
    for encoding in ("base64", "bytes"):
        running, found = begun(of, {"inputs": inputs, "encoding": encoding})
        sizes = [prompt.image and prompt.image.size for prompt in found.prompts]
        assert sizes == [None, (256, 256), (384, 608), sizes[3], (384, 608), (256, 256), None]
        rows = [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in found.prompts]
        answer = advance(running, rows)
        assert isinstance(answer, Response)
        assert answer.prompt_tokens == found.tokens
        if encoding == "bytes":
            names = ("x-encoder-indices", "x-encoder-pages", "x-encoder-rows")
            assert [answer.headers[name] for name in names] == [
                "0,1,1,2,3,3,4",
                ",2,1,,1,2,",
                ",".join(str(len(each)) for each in rows),
            ]
        else:
            data = json.loads(answer.body)["data"]
            assert (data["indices"], data["pages"]) == places
            assert data["rows"] == [len(each) for each in rows]
    # without a PDF there is nothing to say
    running, found = begun(of, {"inputs": ["a text", {"image": IMAGE}]})
    answer = advance(running, [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in found.prompts])
    assert isinstance(answer, Response)
    assert {"indices", "pages"}.isdisjoint(json.loads(answer.body)["data"])
