"""What a request to a visual retriever may hold: without an engine."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from encoder_plugins.errors import InvalidRequest, Overloaded
from encoder_plugins.families.vision import pixels
from encoder_plugins.families.vision.cases import picture
from encoder_plugins.families.vision.processor import VisualProcessor
from encoder_plugins.inputs import image
from encoder_plugins.inputs.remote import RemoteFiles
from encoder_plugins.inputs.tests import origin as origins
from encoder_plugins.inputs.tests.pdfs import pdf
from encoder_plugins.models.colqwen3 import PLUGIN
from encoder_plugins.models.colqwen3.checkpoint import CHECKPOINT
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, ManualEngine, Round, Running, advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

POOLING, RERANK, *_ = PLUGIN.routes
IMAGE = picture(64, 96)
PDF = base64.b64encode(pdf((b"0 0 200 300", b"0 0 100 100"))).decode()
# of images behind addresses
SIZES = {"https://pages.example.com/1.png": (64, 128), "https://pages.example.com/2.png": (320, 96)}
# enough for two queries of a word and two documents, each of 6 144 bytes, and not for three
SCORE_BYTES = 15_000
BROKEN = base64.b64encode(base64.b64decode(IMAGE)[:200]).decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    CHECKPOINT.convert(tiny.build(tmp_path_factory.mktemp("published")), {}, folder)
    return folder


def served(model: Path, most_tokens: int = 512, media_hosts: tuple[str, ...] = (), **changed: int) -> VisualProcessor:
    values = limits.defaults(PLUGIN) | changed
    return VisualProcessor(
        ServingContext(model=model, max_model_len=most_tokens, names=("pages",), limits=values, media_hosts=media_hosts)
    )


def begun(of: VisualProcessor, data: Any) -> tuple[Running, Round]:
    """Return a request that waits for the engine."""
    running: Running = of.run(of.parse(POOLING, json.dumps({"data": data}).encode()), ENGINE)
    found = advance(running)
    assert isinstance(found, Round)
    return running, found


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({}, "data.text", "neither text nor texts"),
        ({"image": IMAGE, "text": "a"}, "data.image", "image and text are both there"),
        ({"images": [IMAGE], "inputs": ["a"]}, "data.images", "images and inputs are both there"),
        ({"image": IMAGE, "query": "a", "documents": ["b"]}, "data.image", "image and documents are both there"),
        ({"image": IMAGE, "input_type": "query"}, "data.input_type", "images, pages and inputs are documents; send"),
        ({"inputs": ["a"], "is_query": True}, "data.is_query", "images, pages and inputs are documents; send"),
        ({"images": []}, "data.images", "at least one image"),
        ({"inputs": []}, "data.inputs", "at least one text"),
        ({"images": [IMAGE] * 3}, "data.images", "3 images; the limit is 2 a request"),
        ({"inputs": [{"image": IMAGE}] * 3}, "data.inputs", "3 images; the limit is 2 a request"),
        ({"inputs": [{}]}, "data.inputs[0]", "either text or image"),
        ({"inputs": ["a", {"text": "b", "image": IMAGE}]}, "data.inputs[1]", "either text or image"),
        ({"inputs": ["a", ""]}, "data.inputs[1]", "the text is empty"),
        ({"inputs": ["a", {"image": "?"}]}, "data.inputs[1].image", "neither base64 nor a data URI"),
        ({"inputs": ["a", {"path": "/etc/passwd"}]}, "data.inputs[1].path", "no such field"),
        ({"image": "file:///etc/passwd"}, "data.image", "an address is not fetched"),
        ({"image": "https://pages.example.com/1.png"}, "data.image", "an address is not fetched"),
        ({"image": IMAGE, "return_tokens": True}, "data.return_tokens", "no token stands for"),
        ({"image": BROKEN}, "data.image", "truncated or damaged"),
        ({"query": "a", "documents": ["b", {"image": BROKEN}]}, "data.documents[1].image", "truncated or damaged"),
        ({"image": picture(700, 900)}, "data.image", "630000 pixels; the limit is 500000"),
        ({"image": picture(600, 800)}, "data.image", "tokens; this server takes 200"),
        ({"images": [picture(64, 64), picture(600, 800)]}, "data.images[1]", "tokens; this server takes 200"),
        ({"text": "a " * 300, "input_type": "document"}, "data.text", "tokens; this server takes 200"),
        (
            {"text": "a <|image_pad|>", "input_type": "query"},
            "data.text",
            "contains <|image_pad|>, a token of the model's",
        ),
        ({"texts": ["a", "<|im_end|>"], "input_type": "document"}, "data.texts[1]", "contains <|im_end|>"),
        ({"query": "<|vision_start|>", "documents": ["b"]}, "data.query", "contains <|vision_start|>"),
        ({"query": "a", "documents": ["b", "<|endoftext|>"]}, "data.documents[1]", "contains <|endoftext|>"),
        ({"image": IMAGE, "pool_factor": 2.0}, "data.image", "the limit pooled_rows"),
        ({"image": IMAGE, "query": "a"}, "data.query", "image and query are both there"),
        ({"pdf": PDF, "images": [IMAGE]}, "data.images", "images and pdf are both there"),
        ({"pdf": PDF, "text": "a"}, "data.pdf", "pdf and text are both there"),
        ({"pdf": PDF, "query": "a"}, "data.query", "pdf and query are both there"),
        ({"pdf": PDF, "input_type": "query"}, "data.input_type", "images, pages and inputs are documents; send"),
        ({"pdf": PDF, "return_tokens": True}, "data.return_tokens", "no token stands for"),
        ({"pdf": PDF, "dpi": 0}, "data.dpi", ">= 1"),
        ({"pdf": PDF, "dpi": 301}, "data.dpi", "the limit is 300 (pdf_dpi)"),
        ({"pdf": PDF, "dpi": 100, "pages": "1-2,2"}, "data.pages", "page 2 is there twice"),
        ({"pdf": PDF, "pages": "3"}, "data.pages", "page 3 is not there: the PDF has 2"),
        ({"pdf": IMAGE}, "data.pdf", "it is not a PDF"),
        ({"pdf": "https://pages.example.com/1.pdf"}, "data.pdf", "an address is not fetched"),
        ({"pdf": PDF, "dpi": 300}, "data.pdf", "tokens; this server takes 200"),
        ({"pdf": PDF, "dpi": 50, "pool_factor": 2.0}, "data.pdf", "the limit pooled_rows"),
        ({"image": IMAGE, "pages": "1"}, "data.pages", "there is no pdf"),
        ({"query": "a", "documents": ["b"], "dpi": 100}, "data.dpi", "there is no pdf"),
        *(
            ({**more, name: ["b", document]}, f"data.{name}[1]{field}", says)
            for name, more in (("documents", {"query": "a"}), ("inputs", {}))
            for document, field, says in (
                ({"pdf": PDF, "text": "c"}, "", "an item has either text or image, or pdf"),
                ({"pdf": PDF, "image": IMAGE}, "", "an item has either text or image, or pdf"),
                ({}, "", "an item has either text or image, or pdf"),
                ({"text": "c", "pages": "1"}, ".pages", "there is no pdf"),
                ({"image": IMAGE, "dpi": 72}, ".dpi", "there is no pdf"),
                ({"pdf": PDF, "dpi": 301}, ".dpi", "the limit is 300 (pdf_dpi)"),
                ({"pdf": PDF, "pages": "2-1"}, ".pages", "such as 1-3,7"),
                ({"pdf": PDF, "pages": "3"}, ".pages", "page 3 is not there: the PDF has 2"),
                ({"pdf": IMAGE}, ".pdf", "it is not a PDF"),
                ({"pdf": "https://pages.example.com/1.pdf"}, ".pdf", "an address is not fetched"),
                ({"pdf": "file:///etc/passwd"}, ".pdf", "an address is not fetched"),
                ({"pdf": PDF, "dpi": 300}, ".pdf", "tokens; this server takes 200"),
            )
        ),
        (
            {"query": "a", "documents": [{"pdf": PDF, "pages": "1-2"}, {"pdf": PDF}, {"pdf": PDF, "pages": "1"}]},
            "data.documents[2].pages",
            "4 pages with those of the PDFs before it; the limit is 3 a request (pdf_pages)",
        ),
        (
            {"query": "a", "documents": [{"pdf": PDF, "dpi": 50}, {"pdf": PDF}]},
            "data.documents[1].pages",
            "the PDF has 2 pages, and those before it have 2; the limit is 3 a request (pdf_pages)",
        ),
        (
            {"query": "a", "documents": ["b", "c", {"pdf": PDF, "pages": "1,2"}]},
            "data.documents",
            "4 documents, each page of a PDF being one; the limit is 3 (documents)",
        ),
        (
            {"query": "a", "documents": ["b", "c", {"pdf": PDF, "dpi": 50}]},
            "data.documents",
            "4 documents, each page of a PDF being one; the limit is 3 (documents)",
        ),
        (
            {"inputs": ["b", "c", "d", {"pdf": PDF, "pages": "1,2"}]},
            "data.inputs",
            "5 documents, each page of a PDF being one; the limit is 4 (texts)",
        ),
        (
            {"inputs": ["b", "c", "d", {"pdf": PDF, "dpi": 50}]},
            "data.inputs",
            "5 documents, each page of a PDF being one; the limit is 4 (texts)",
        ),
        ({"inputs": [{"pdf": PDF, "dpi": 50}], "pool_factor": 2.0}, "data.inputs[0].pdf", "the limit pooled_rows"),
        (
            {"queries": ["a", "a"], "documents": ["b", {"pdf": PDF, "dpi": 50}]},
            "data.documents",
            "once for each of 3 documents, are",
        ),
    ],
)
def test_a_bad_request_is_refused_by_field(data: Any, param: str, says: str, model: Path) -> None:
    changed = {"images": 2, "image_pixels": 500_000, "pooled_rows": 50, "documents": 3, "texts": 4, "pdf_pages": 3}
    processor = served(model, 200, (), score_bytes=SCORE_BYTES, **changed)
    with pytest.raises(InvalidRequest) as refused:
        begun(processor, data)
    assert (refused.value.param, says in str(refused.value)) == (param, True), str(refused.value)


def test_an_image_is_scaled_and_counted_before_the_engine(model: Path) -> None:
    running, found = begun(served(model), {"inputs": ["a text", {"image": picture(1200, 800)}], "encoding": "base64"})
    text, image = found.prompts
    assert (text.image, text.tokens) == (None, len(text.token_ids))
    assert image.image is not None
    # 300 tokens of 32 × 32 pixels at most, and the prompt around them
    assert image.image.size == (672, 448)
    assert (image.image_tokens, image.tokens) == (294, 294 + len(image.token_ids) - 1)
    assert found.tokens == text.tokens + image.tokens
    response = advance(running, [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in found.prompts])
    assert isinstance(response, Response)
    assert response.prompt_tokens == found.tokens
    assert json.loads(response.body)["data"]["rows"] == [text.tokens, image.tokens]


def test_an_empty_text_beside_a_file_is_none(model: Path) -> None:
    items = [{"image": IMAGE}, {"pdf": PDF, "pages": "2"}]
    empty = [{**item, "text": ""} for item in items]
    for name, query in (("inputs", {}), ("documents", {"query": "a"})):
        (_, found), (_, expected) = (begun(served(model), {name: given, **query}) for given in (empty, items))
        assert [prompt.token_ids for prompt in found.prompts] == [prompt.token_ids for prompt in expected.prompts]
        assert [image_bytes(prompt) for prompt in found.prompts] == [image_bytes(prompt) for prompt in expected.prompts]


def test_images_of_allowed_hosts_are_fetched_for_their_fields_and_the_others_are_left(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    async def fetch(files: RemoteFiles, addresses: dict[str, str], *, before: int = 0) -> dict[str, bytes]:
        seen.append(dict(addresses))
        return {field: base64.b64decode(picture(*SIZES[address])) for field, address in addresses.items()}

    monkeypatch.setattr(RemoteFiles, "fetch", fetch)
    plain, allowed = served(model), served(model, media_hosts=("pages.example.com",))
    items = [{"image": IMAGE}, "a text", *({"image": address} for address in SIZES)]
    same = [{"image": IMAGE}, "a text", *({"image": picture(*size)} for size in SIZES.values())]
    ((_, found), (_, expected)) = (
        begun(of, {"inputs": data, "encoding": "base64"}) for of, data in ((allowed, items), (plain, same))
    )
    assert seen == [dict(zip(("data.inputs[2].image", "data.inputs[3].image"), SIZES, strict=True))]
    assert [prompt.token_ids for prompt in found.prompts] == [prompt.token_ids for prompt in expected.prompts]
    assert [image_bytes(prompt) for prompt in found.prompts] == [image_bytes(prompt) for prompt in expected.prompts]
    # what scores and ranks takes them, too
    begun(allowed, {"query": "a", "documents": items})
    allowed.parse(RERANK, json.dumps({"query": "a", "documents": items}).encode())
    assert len(seen) == 2
    with pytest.raises(InvalidRequest, match=r"evil.example.com is not allowed; .* pages.example.com") as refused:
        begun(allowed, {"images": [IMAGE, "https://evil.example.com/a.png"]})
    assert refused.value.param == "data.images[1]"


def test_an_image_that_comes_again_is_decoded_once_within_the_bytes_that_are_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def decode(content: bytes, *rest: Any, **more: Any) -> Image.Image:
        decoded.append(content)
        return image.decode(content, *rest, **more)

    monkeypatch.setattr(pixels, "decode", decode)
    # 256 × 256 pixels each, in which Pillow has four bytes: eight of them fit, and one may take an eighth
    kept = 4 * 256 * 256
    first, second, third = (picture(256, 256, seed) for seed in range(3))
    of, none = served(model, image_cache_bytes=8 * kept), served(model, image_cache_bytes=8 * kept - 1)

    def prompts(by: VisualProcessor, *images: str) -> list[bytes | None]:
        _, found = begun(by, {"images": list(images), "encoding": "base64"})
        return [image_bytes(prompt) for prompt in found.prompts]

    expected = prompts(none, first, second, third)
    assert len(set(expected)) == 3
    assert prompts(of, first, second, third, first) == [*expected, expected[0]]
    assert len(decoded) == 3 + 3
    assert prompts(of, first, second, third) == expected
    assert len(decoded) == 6
    # larger than its share: decoded each time
    assert prompts(none, first, first) == [expected[0]] * 2
    assert len(decoded) == 8
    # the least recently used goes first
    many = [picture(256, 256, seed) for seed in range(3, 11)]
    prompts(of, *many[:5])
    prompts(of, first, *many[5:8])
    assert len(decoded) == 16
    prompts(of, first, many[7])
    assert len(decoded) == 16
    prompts(of, second)
    assert len(decoded) == 17


def image_bytes(prompt: Prompt) -> bytes | None:
    return None if prompt.image is None else prompt.image.tobytes()


def test_each_page_of_a_pdf_is_a_document(model: Path) -> None:
    processor = served(model)
    running, found = begun(processor, {"pdf": PDF, "pages": "2,1", "dpi": 144, "encoding": "base64"})
    # 200 × 200 pixels and 400 × 600, and 64 to 300 tokens of 32 × 32
    assert [prompt.image and prompt.image.size for prompt in found.prompts] == [(256, 256), (384, 608)]
    rows = [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in found.prompts]
    answer = advance(running, rows)
    assert isinstance(answer, Response)
    answered = json.loads(answer.body)["data"]
    assert (answered["pages"], answered["rows"]) == ([2, 1], [len(each) for each in rows])
    running, found = begun(processor, {"pdf": PDF, "encoding": "bytes"})
    answer = advance(running, rows[::-1])
    assert isinstance(answer, Response)
    assert answer.headers["x-encoder-pages"] == "1,2"
    assert answer.headers["x-encoder-rows"] == ",".join(str(len(each)) for each in rows[::-1])


class Rows(ManualEngine):
    """An engine whose rows are ones, in an event loop.

    Attributes:
        prompts: What it was sent.
    """

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
        self.prompts += prompts
        # a document to score carries the rows of the query
        scored = ["queries" in (prompt.parameters or {}) for prompt in prompts]
        return [
            torch.ones(1, 1) if score else torch.ones(prompt.tokens, tiny.DIMENSIONS)
            for prompt, score in zip(prompts, scored, strict=True)
        ]


async def answered(of: VisualProcessor, data: Any) -> tuple[bytes, list[bytes | None]]:
    """Return the body of an answer, and the pixels of its prompts."""
    engine = Rows()
    response = await of.run(of.parse(POOLING, json.dumps({"data": data}).encode()), engine)
    return response.body, [image_bytes(prompt) for prompt in engine.prompts]


async def test_a_pdf_behind_an_address_has_the_pages_of_the_same_pdf_in_the_request(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    origins.allow_loopback(monkeypatch)
    kind = "application/pdf"
    files = {"/1.pdf": (kind, base64.b64decode(PDF)), "/page.pdf": (kind, b"<html>"), "/1.png": ("image/png", b"a")}
    async with origins.running(files, tmp_path) as origin:
        allowed = served(model, media_hosts=(origin.host,))
        address = origin.address("/1.pdf")
        for more in ({}, {"pages": "2,1", "dpi": 100}, {"pages": "1", "encoding": "bytes"}):
            found = await answered(allowed, {"pdf": address, **more})
            assert found == await answered(served(model), {"pdf": PDF, **more})
            assert len(found[1]) == len(set(found[1])) == (1 if more.get("pages") == "1" else 2)
        assert len(origin.requests) == 3
        for data, param, says in (
            ({"pdf": origin.address("/page.pdf")}, "data.pdf", "it is not a PDF: it does not begin with %PDF-"),
            ({"pdf": origin.address("/1.png")}, "data.pdf", "answered with image/png, not with a PDF"),
            ({"pdf": origin.address("/moved/1.pdf"), "pages": "3"}, "data.pages", "page 3 is not there: the PDF has 2"),
            ({"pdf": "https://evil.example.com/1.pdf"}, "data.pdf", "evil.example.com is not allowed"),
            ({"pdf": "file:///etc/hostname"}, "data.pdf", "an address is not fetched"),
            ({"pdf": address, "dpi": 301}, "data.dpi", "the limit is 300 (pdf_dpi)"),
            ({"image": address}, "data.image", "answered with application/pdf, not with an image"),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await answered(allowed, data)
            assert (refused.value.param, says in refused.value.message) == (param, True), refused.value.message
        small = served(model, media_hosts=(origin.host,), pdf_bytes=500)
        with pytest.raises(InvalidRequest, match=r"the limit is 500 a PDF \(pdf_bytes\)"):
            await answered(small, {"pdf": address})


async def test_nothing_is_fetched_for_a_pdf_that_is_refused_for_now(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching, finish, fetched = asyncio.Event(), asyncio.Event(), []

    async def fetch(files: RemoteFiles, addresses: dict[str, str], *, before: int = 0) -> dict[str, bytes]:
        fetched.append(addresses)
        fetching.set()
        await finish.wait()
        return dict.fromkeys(addresses, base64.b64decode(PDF))

    monkeypatch.setattr(RemoteFiles, "fetch", fetch)
    of = served(model, media_hosts=("pages.example.com",), pdf_in_flight=1)
    remote = {"pdf": "https://pages.example.com/1.pdf"}
    slow = asyncio.create_task(answered(of, remote))
    await fetching.wait()
    for data, param in (
        (remote, "data.pdf"),
        ({"pdf": PDF}, "data.pdf"),
        ({"query": "a", "documents": ["b", remote]}, "data.documents[1].pdf"),
    ):
        with pytest.raises(Overloaded, match="limit 1, pdf_in_flight") as refused:
            await answered(of, data)
        assert refused.value.param == param
    # which others do not notice
    await answered(of, {"image": IMAGE})
    finish.set()
    assert await slow == await answered(of, {"pdf": PDF})
    assert fetched == [{"data.pdf": remote["pdf"]}]


def test_documents_that_are_images_are_scored(model: Path) -> None:
    running, queries = begun(
        served(model), {"queries": ["a", "b c"], "documents": [{"image": IMAGE}, "text"], "top_k": 1}
    )
    assert [prompt.image for prompt in queries.prompts] == [None, None]
    documents = advance(running, [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in queries.prompts])
    assert isinstance(documents, Round)
    assert [prompt.image is not None for prompt in documents.prompts] == [True, False]
    answer = advance(running, [torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0, 3.0]])])
    assert isinstance(answer, Response)
    results = json.loads(answer.body)["data"]["results"]
    assert results == [{"indices": [1], "scores": [2.0]}, {"indices": [0], "scores": [4.0]}]


SCORED = [{"pdf": PDF, "pages": "2,1", "dpi": 72}, "text", {"image": IMAGE}, {"pdf": PDF, "dpi": 100}]
PLACES = [(0, 2), (0, 1), (1, None), (2, None), (3, 1), (3, 2)]


def scored(of: VisualProcessor, route: Route, body: Any) -> Any:
    """Return the answer of an engine whose scores rise from document to document, but that the first is as good as the last."""
    running: Running = of.run(of.parse(route, json.dumps(body).encode()), ENGINE)
    queries = advance(running)
    assert isinstance(queries, Round)
    documents = advance(running, [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in queries.prompts])
    assert isinstance(documents, Round)
    # 100 × 100 and 200 × 300 points
    sizes = [prompt.image and prompt.image.size for prompt in documents.prompts]
    assert (sizes[0], sizes[2], sizes[5]) == ((256, 256), None, (256, 256))
    assert len(sizes) == len(set(map(id, documents.prompts))) == 6
    values = torch.tensor([[5.0, 1, 2, 3, 4, 5], [0.0, 1, 2, 3, 4, 5]])
    answer = advance(running, [*values[: len(queries.prompts)].T[:, None]])
    assert isinstance(answer, Response)
    found = json.loads(answer.body)
    assert answer.prompt_tokens == queries.tokens + documents.tokens
    return found


def test_each_page_of_a_pdf_is_scored_and_named_by_its_document_and_its_number(model: Path) -> None:
    of = served(model)
    answer = scored(of, POOLING, {"data": {"queries": ["a", "b"], "documents": SCORED}})["data"]
    first, second = ([0, 5, 4, 3, 2, 1], [5, 4, 3, 2, 1, 0])
    assert answer["results"] == [
        {
            "indices": [PLACES[place][0] for place in order],
            "scores": scores,
            "pages": [PLACES[place][1] for place in order],
        }
        for order, scores in ((first, [5, 5, 4, 3, 2, 1]), (second, [5, 4, 3, 2, 1, 0]))
    ]
    top = scored(of, POOLING, {"data": {"query": "a", "documents": SCORED, "top_k": 2}})["data"]["results"]
    assert top == [{"indices": [0, 3], "scores": [5, 5], "pages": [2, 2]}]


def test_each_page_of_a_pdf_is_reranked_and_has_the_index_of_its_document(model: Path) -> None:
    of = served(model, media_hosts=("pages.example.com",))
    answer = scored(of, RERANK, {"query": "a", "documents": SCORED, "top_n": 5})
    assert answer["results"] == [
        {"index": 0, "page": 2, "relevance_score": 5},
        {"index": 3, "page": 2, "relevance_score": 5},
        {"index": 3, "page": 1, "relevance_score": 4},
        {"index": 2, "relevance_score": 3},
        {"index": 1, "relevance_score": 2},
    ]
    for body, param, says in (
        ({"return_documents": True}, "return_documents", "neither are pages"),
        ({"documents": ["b"], "max_tokens_per_doc": 99}, "max_tokens_per_doc", "documents are not cut;"),
        ({"documents": ["b", {"pdf": PDF, "dpi": 301}]}, "documents[1].dpi", "the limit is 300 (pdf_dpi)"),
        ({"documents": [{"pdf": "https://evil.example.com/a.pdf"}]}, "documents[0].pdf", "is not allowed"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            of.parse(RERANK, json.dumps({"query": "a", "documents": SCORED, **body}).encode())
        assert (refused.value.param, says in refused.value.message) == (param, True), refused.value.message


async def test_documents_behind_addresses_are_fetched_together_within_the_bytes_of_a_body(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    origins.allow_loopback(monkeypatch)
    content = base64.b64decode(PDF)
    files = {"/1.pdf": ("application/pdf", content), "/1.png": ("image/png", base64.b64decode(IMAGE))}
    async with origins.running(files, tmp_path) as origin:
        pdf_, image_ = origin.address("/1.pdf"), origin.address("/1.png")
        documents = [{"pdf": pdf_, "pages": "2"}, {"image": image_}, "text", {"pdf": PDF}, {"pdf": pdf_}]
        same = [{"pdf": PDF, "pages": "2"}, {"image": IMAGE}, "text", {"pdf": PDF}, {"pdf": PDF}]
        of = served(model, media_hosts=(origin.host,))
        expected = await answered(served(model), {"query": "a", "documents": same})
        assert await answered(of, {"query": "a", "documents": documents}) == expected
        assert len(origin.requests) == 3
        most = 2 * len(content) + len(base64.b64decode(IMAGE)) - 1
        of = served(model, media_hosts=(origin.host,), body_bytes=most)
        with pytest.raises(InvalidRequest, match="the files of the request exceed") as refused:
            await answered(of, {"query": "a", "documents": documents})
        assert refused.value.param in ("data.documents[0].pdf", "data.documents[4].pdf")


def test_texts_and_images_are_reranked(model: Path) -> None:
    processor = served(model)
    body = {"query": "a", "documents": ["b", {"text": "c"}, {"image": IMAGE}], "top_n": 2, "truncation": False}
    running: Running = processor.run(processor.parse(RERANK, json.dumps(body).encode()), ENGINE)
    queries = advance(running)
    assert isinstance(queries, Round)
    documents = advance(running, [torch.ones(prompt.tokens, tiny.DIMENSIONS) for prompt in queries.prompts])
    assert isinstance(documents, Round)
    assert [prompt.image is not None for prompt in documents.prompts] == [False, False, True]
    answer = advance(running, [torch.tensor([[1.0]]), torch.tensor([[2.0]]), torch.tensor([[3.0]])])
    assert isinstance(answer, Response)
    results = json.loads(answer.body)["results"]
    assert results == [{"index": 2, "relevance_score": 3.0}, {"index": 1, "relevance_score": 2.0}]
    with pytest.raises(InvalidRequest, match="images are not repeated") as refused:
        processor.parse(RERANK, json.dumps({**body, "return_documents": True}).encode())
    assert refused.value.param == "return_documents"
