"""Rows and scores of pages over HTTP, against the library, and files that must not hurt the server. One real server."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest
from numpy.typing import NDArray
from PIL import Image

from encoder_checkpoints.answer_cache import library_answer
from encoder_client import ArgumentError, InvalidRequestError, MultiVectorEncoder, Pdf
from encoder_client.tests import documented
from encoder_plugins.families.vision.cases import picture
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.tests import pdfs
from encoder_plugins.inputs.tests.pdfs import pdf
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.serving.tests import servers
from encoder_plugins.serving.tests.servers import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

# a name that no resolver has (RFC 2606)
README = Path(__file__).parents[1] / "README.md"
EXAMPLE = Path(__file__).parents[5] / "examples/pages"
HOST = "files.invalid"
QUERY = "Which page has a table of prices?"
PAGE, WIDE, SMALL = picture(413, 585, 1), picture(900, 50, 2), picture(30, 40, 3)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def server(published: Path) -> Iterator[Server]:
    artifact = servers.prepare("colqwen3", published, published.parent / ("a" * 64))
    with servers.running(artifact, "--limit", "pdf_seconds=2", "--allowed-media-host", HOST, name="pages") as started:
        yield started


def expected(published: Path, **case: Any) -> NDArray[np.float32]:
    """Return what the library computes for a case."""
    whole = {"id": "one", "text": None, "image": None, "documents": None, "input_type": "document", **case}
    found: NDArray[np.float32] = library_answer(
        "sauerkrautlm_colpali", "encoder_plugins.families.vision.tests.oracle:output", "colqwen3", str(published), whole
    )
    return found


def jpeg(content: str) -> tuple[str, str]:
    """Return a picture as a JPEG, and as a PNG of the pixels that the JPEG has."""
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    stream, exact = io.BytesIO(), io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    Image.open(stream).save(exact, "PNG")
    return base64.b64encode(stream.getvalue()).decode(), base64.b64encode(exact.getvalue()).decode()


def test_images_texts_and_queries_have_the_rows_of_the_library(server: Server, published: Path) -> None:
    query = server.answer(text=QUERY, input_type="query")
    np.testing.assert_allclose(
        query["embeddings"][0], expected(published, text=QUERY, input_type="query"), rtol=0, atol=1e-5
    )
    compressed, pixels = jpeg(PAGE)
    mixed = server.answer(
        inputs=[{"image": PAGE}, "A text.", {"image": f"data:image/jpeg;base64,{compressed}"}, {"text": "Another."}],
        encoding="base64",
    )
    cases: list[dict[str, Any]] = [{"image": PAGE}, {"text": "A text."}, {"image": pixels}, {"text": "Another."}]
    for case, rows, count in zip(cases, mixed["embeddings"], mixed["rows"], strict=True):
        reference = expected(published, **case)
        found = encodings.decode_base64(rows).reshape(count, mixed["dimensions"])
        np.testing.assert_allclose(found, reference, rtol=0, atol=1e-5)
    assert mixed["usage"]["prompt_tokens"] == sum(mixed["rows"])
    several = server.answer(images=[WIDE, SMALL], embedding_dtype="float16", encoding="base64", dimensions=16)
    assert several["rows"] == [len(expected(published, image=image)) for image in (WIDE, SMALL)]
    assert several["dimensions"] == 16


def test_pages_are_ranked_as_by_the_library(server: Server, published: Path) -> None:
    documents = [{"image": PAGE}, "A text about prices.", {"image": WIDE}, {"text": "Bread."}]
    answer = server.answer(query=QUERY, documents=documents)["results"][0]
    reference = expected(
        published,
        text=QUERY,
        input_type="query",
        documents=[{"image": PAGE}, "A text about prices.", {"image": WIDE}, "Bread."],
    )
    assert answer["indices"] == np.argsort(-reference, kind="stable").tolist()
    np.testing.assert_allclose(answer["scores"], np.sort(reference)[::-1], rtol=1e-5)


def test_requests_with_images_and_without_do_not_change_each_other(server: Server) -> None:
    requests: list[dict[str, Any]] = [
        *({"image": image} for image in (PAGE, WIDE, SMALL)),
        *({"text": text, "input_type": "query"} for text in (QUERY, "bread", "a b c " * 30)),
        {"query": QUERY, "documents": [{"image": SMALL}, "a text"]},
    ]
    alone = [server.answer(**data) for data in requests]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda data: server.answer(**data), requests * 3))
    for number, found in enumerate(together):
        reference = alone[number % len(requests)]
        assert found["usage"] == reference["usage"]
        if "results" in found:
            np.testing.assert_allclose(found["results"][0]["scores"], reference["results"][0]["scores"], rtol=1e-5)
        else:
            np.testing.assert_allclose(found["embeddings"][0], reference["embeddings"][0], rtol=0, atol=1e-5)


def png(page: Image.Image) -> str:
    stream = io.BytesIO()
    page.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def test_pages_of_a_pdf_have_the_rows_of_their_images(server: Server) -> None:
    content = pdf((b"0 0 210 297", b"0 0 150 100", b"0 0 40 30"), (pdfs.text("one"), pdfs.text("two")), page=pdfs.FONT)
    document = pypdfium2.PdfDocument(content)
    images = [png(document[number].render(scale=144 / 72).to_pil()) for number in range(3)]
    document.close()
    encoded = base64.b64encode(content).decode()
    expected = server.answer(images=images)
    found = server.answer(pdf=encoded)
    assert (found["pages"], found["rows"]) == ([1, 2, 3], expected["rows"])
    for page, image in zip(found["embeddings"], expected["embeddings"], strict=True):
        np.testing.assert_allclose(page, image, rtol=0, atol=1e-5)
    chosen = server.answer(pdf=encoded, pages="3,1")
    assert (chosen["pages"], chosen["rows"]) == ([3, 1], [expected["rows"][2], expected["rows"][0]])
    np.testing.assert_allclose(chosen["embeddings"][1], expected["embeddings"][0], rtol=0, atol=1e-5)
    mixed = server.answer(inputs=["A text.", {"pdf": encoded, "pages": "2-3"}, {"image": images[0]}])
    assert (mixed["indices"], mixed["pages"]) == ([0, 1, 1, 2], [None, 2, 3, None])
    for rows, image in zip(mixed["embeddings"][1:], (1, 2, 0), strict=True):
        np.testing.assert_allclose(rows, expected["embeddings"][image], rtol=0, atol=1e-5)


def test_pages_of_pdfs_are_scored_and_reranked_as_their_images(server: Server) -> None:
    content = pdf((b"0 0 210 297", b"0 0 150 100"), (pdfs.text("one"), pdfs.text("two")), page=pdfs.FONT)
    with pypdfium2.PdfDocument(content) as document:
        images = [{"image": png(document[number].render(scale=144 / 72).to_pil())} for number in range(2)]
    encoded = base64.b64encode(content).decode()
    scores = server.answer(query=QUERY, documents=["A text.", *images, images[1]])["results"][0]
    score_of = dict(zip(scores["indices"], scores["scores"], strict=True))
    documents = ["A text.", {"pdf": encoded}, {"pdf": encoded, "pages": "2"}]
    (found,) = server.answer(query=QUERY, documents=documents)["results"]
    # of the image that each page is
    same = {(0, None): 0, (1, 1): 1, (1, 2): 2, (2, 2): 3}
    places = list(zip(found["indices"], found["pages"], strict=True))
    assert set(places) == set(same)
    np.testing.assert_allclose(found["scores"], [score_of[same[place]] for place in places], rtol=1e-5)
    body = {"model": "pages", "query": QUERY, "documents": documents, "top_n": 3}
    for path in ("/rerank", "/v2/rerank"):
        results = server.post(body, path).json()["results"]
        assert [(each["index"], each.get("page")) for each in results] == places[:3]
        np.testing.assert_allclose([each["relevance_score"] for each in results], found["scores"][:3], rtol=1e-5)
    error = server.post({**body, "documents": [*documents, {"pdf": encoded, "pages": "3"}]}, "/rerank").json()["error"]
    assert (error["param"], "page 3 is not there" in error["message"]) == ("documents[3].pages", True), error


def test_a_pdf_that_takes_too_long_is_refused_and_others_are_answered_meanwhile(server: Server) -> None:
    before = server.answer(image=SMALL)
    slow = base64.b64encode(pdf(contents=(pdfs.SLOW,))).decode()
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(server.refusal, pdf=slow)
        answered = 0
        while not refused.done():
            np.testing.assert_allclose(
                server.answer(image=SMALL)["embeddings"][0], before["embeddings"][0], rtol=0, atol=1e-5
            )
            answered += 1
    error = refused.result()
    assert (error["param"], "the limit (pdf_seconds)" in error["message"]) == ("data.pdf", True), error
    # one of them came before the refusal
    assert answered > 1
    for pdf_, param in (
        (pdf((b"0 0 14400 14400",)), "data.pdf"),
        (pdf(trailer=pdfs.ENCRYPTED), "data.pdf"),
        (pdf(pdfs.A_HUNDRED * 33), "data.pages"),
    ):
        assert server.refusal(pdf=base64.b64encode(pdf_).decode())["param"] == param


def test_an_image_that_cannot_be_served_is_refused_and_the_server_goes_on(server: Server) -> None:
    before = server.answer(image=SMALL)
    sound = base64.b64decode(PAGE)
    for content, says in (
        (sound[: len(sound) // 2], "truncated or damaged"),
        (b"%PDF-1.7", "not an image"),
        (tiny.line(1, 30_000), "1 × 30000: a side may be 200 times the other"),
        (tiny.line(9000, 9000), "81000000 pixels; the limit is 40000000"),
    ):
        error = server.refusal(images=[SMALL, base64.b64encode(content).decode()])
        assert (error["param"], says in error["message"]) == ("data.images[1]", True), error
    for data, param in (
        ({"image": "https://example.org/a.png"}, "data.image"),
        ({"pdf": "https://example.org/a.pdf"}, "data.pdf"),
        ({"images": [SMALL] * 33}, "data.images"),
        ({"inputs": ["a", {"text": "b <|image_pad|> c"}]}, "data.inputs[1]"),
        ({"text": "<|im_start|>user", "input_type": "query"}, "data.text"),
        ({"query": QUERY, "documents": ["a", {"image": "AAAA"}]}, "data.documents[1].image"),
    ):
        assert server.refusal(**data)["param"] == param
    assert server.answer(image=SMALL) == before


def test_the_python_client_returns_what_the_library_returns(server: Server, published: Path, tmp_path: Path) -> None:
    content = base64.b64decode(PAGE)
    (tmp_path / "wide.png").write_bytes(base64.b64decode(WIDE))
    with Image.open(io.BytesIO(base64.b64decode(SMALL))) as small, MultiVectorEncoder(server.url) as model:
        inputs = [content, "A text.", tmp_path / "wide.png", small]
        cases: list[dict[str, Any]] = [{"image": PAGE}, {"text": "A text."}, {"image": WIDE}, {"image": SMALL}]
        found = model.encode_document(inputs, batch_size=3)
        for case, rows in zip(cases, found, strict=True):
            np.testing.assert_allclose(rows, expected(published, **case), rtol=0, atol=1e-5)
        documents = [{"image": PAGE}, "A text.", {"image": WIDE}, {"image": SMALL}]
        scores = expected(published, text=QUERY, input_type="query", documents=documents)
        for each in model.rank(QUERY, inputs, batch_size=3):
            np.testing.assert_allclose(each["score"], scores[each["corpus_id"]], rtol=1e-5)
        np.testing.assert_allclose(model.similarity(model.encode_query(QUERY), found)[0], scores, rtol=1e-5)
        pages = pdf((b"0 0 210 297", b"0 0 150 100"), (pdfs.text("one"), pdfs.text("two")), page=pdfs.FONT)
        one, two = model.encode_document(Pdf(pages, dpi=72))
        (again,) = model.encode_document([Pdf(pages, "2,1", dpi=72)])
        np.testing.assert_allclose(again[0], two, rtol=0, atol=1e-5)
        np.testing.assert_allclose(again[1], one, rtol=0, atol=1e-5)
        for wrong, param in ((b"%PDF-1.7", "data.inputs[1].image"), (Pdf(pages, "3"), "inputs[1].pages")):
            with pytest.raises(InvalidRequestError) as caught:
                model.encode_document(["a", wrong])
            assert caught.value.param == param
        ranking = model.rank(QUERY, ["A text.", Pdf(pages, dpi=72)], top_k=2)
        together = model.similarity(model.encode_query(QUERY), [*model.encode_document(["A text."]), one, two])[0]
        place = {(0, None): 0, (1, 1): 1, (1, 2): 2}
        for each in ranking:
            score = together[place[each["corpus_id"], each.get("page")]]
            np.testing.assert_allclose(each["score"], score, rtol=1e-5)
        # sent as it is, and fetched by the server, or not
        for remote, param in (
            ({"image": f"https://{HOST}/a.png"}, "data.inputs[1].image"),
            (Pdf(f"https://{HOST}/a.pdf"), "inputs[1].pdf"),
        ):
            with pytest.raises(InvalidRequestError, match="could not be fetched") as caught:
                model.encode_document(["a", remote])
            assert caught.value.param == param
        with pytest.raises(ArgumentError, match="limit"):
            model.encode_document(b"a" * (20 << 20 | 1))


async def test_the_examples_of_the_pages_run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # those of the example, and under the names that the page has
    names = {file.name: file.name for file in EXAMPLE.iterdir()}
    for name, ours in (names | {"report.pdf": "operation.pdf", "page.png": "sizes_1.png"}).items():
        (tmp_path / name).symlink_to(EXAMPLE / ours)
    monkeypatch.chdir(tmp_path)
    variables = await documented.run("pages", server.url, README)
    assert (len(variables["pages"]), variables["scores"].shape, len(variables["rows"])) == (3, (1, 3), 3)


def test_the_example_finds_pages_with_the_scores_of_the_server(server: Server, tmp_path: Path) -> None:
    folder = EXAMPLE

    def run(script: str, *arguments: str) -> str:
        command = ["uv", "run", "--quiet", "--frozen", "--script", str(folder / script), *arguments]
        done = subprocess.run(command, env={**os.environ, "VIRTUAL_ENV": ""}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("make_pdfs.py", str(tmp_path))
    for name in ("sizes.pdf", "operation.pdf"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), f"{name} is of another make_pdfs.py"
    picture = tmp_path / "found.png"
    about, *lines, wrote = run(
        "search.py", server.url, QUERY, "--rescore", "--top", "8", "--picture", str(picture)
    ).splitlines()
    assert about.startswith("8 pages, ")
    assert wrote == f"wrote {picture}"
    found = [re.fullmatch(r"(\S+)  server (\S+)  (\S+), page (\d)", line) for line in lines]
    pages = [(match[3], int(match[4])) for match in found if match]
    assert sorted(pages) == [(name, page) for name in ("operation.pdf", "sizes.pdf") for page in (1, 2, 3, 4)]
    # only float16 lies between them
    stored, scored = ([float(match[group]) for match in found if match] for group in (1, 2))
    np.testing.assert_allclose(stored, scored, rtol=2e-3)
    name, page = pages[0]
    with pypdfium2.PdfDocument(folder / name) as document, Image.open(picture) as image:
        width, height = document[page - 1].get_size()
        assert image.size == (-int(-width * 96 // 72), -int(-height * 96 // 72))


def test_the_example_renders_what_has_been_filled_in_as_the_server_does(server: Server, tmp_path: Path) -> None:
    drawn = b"0 0.6 0 rg 0 0 200 200 re f"
    widget = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /F 4 /Rect [50 50 250 250] /AP << /N 4 0 R >> >>"
    stream = b"<< /Type /XObject /Subtype /Form /BBox [0 0 200 200] /Length %d >> stream\n%s\nendstream"
    filled = pdf(
        (b"0 0 300 300",),
        page=b"/Annots [3 0 R]",
        catalogue=b"/AcroForm << /Fields [3 0 R] >>",
        others=(widget, stream % (len(drawn), drawn)),
    )
    (tmp_path / "filled.pdf").write_bytes(filled)
    command = ["uv", "run", "--quiet", "--frozen", "--script", str(EXAMPLE / "search.py"), server.url, QUERY]
    command += [str(tmp_path / "filled.pdf"), "--rescore", "--picture", str(tmp_path / "found.png")]
    done = subprocess.run(command, env={**os.environ, "VIRTUAL_ENV": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "found.png") as image:
        assert image.getpixel((200, 200)) == (0, 153, 0)
