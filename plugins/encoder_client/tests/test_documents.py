"""Images and PDFs as documents: what is sent for them, how they are split into requests, and what is refused by name."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from encoder_client import (
    ArgumentError,
    AsyncMultiVectorEncoder,
    InvalidRequestError,
    MultiVectorEncoder,
    Pdf,
    documents,
)
from encoder_client.tests.scripted_server import Reply, ScriptedServer, refusal


def pages_of(data: Any) -> list[int]:
    """Return the numbers that stand for the documents of a request: of a text its length, of an image its first byte."""
    if "pdf" in data:
        return [int(page) for page in data.get("pages", "1,2").split(",")]
    listed = data.get("inputs") or data.get("documents") or data["texts"]
    return [number for each in listed for number in numbers_of(each)]


def numbers_of(document: Any) -> list[int]:
    if isinstance(document, str):
        return [len(document)]
    if "pdf" in document:
        return pages_of(document)
    image = document["image"]
    return [len(image) if image.lower().startswith("http") else base64.b64decode(image)[0]]


def visual(data: Any) -> Reply:
    """Answer each document with one row, or with its number as the score."""
    numbers = pages_of(data)
    if "documents" in data:
        result: dict[str, Any] = {"indices": list(range(len(numbers))), "scores": numbers}
        if isinstance(data["documents"][0], dict) and "pdf" in data["documents"][0]:
            result = {"indices": [0] * len(numbers), "scores": numbers, "pages": numbers}
        results = [{name: values[: data.get("top_k")] for name, values in result.items()}]
        return Reply(200, {"data": {"results": results, "usage": {}}})
    headers = {"x-encoder-shape": f"{len(numbers)},1", "x-encoder-dtype": "float32"}
    content = np.array(numbers, "<f4").tobytes()
    return Reply(200, content, {**headers, "x-encoder-rows": ",".join("1" for _ in numbers)})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("colqwen3", visual, images=2, pdf_pages=3, image_bytes=5000, pdf_bytes=50) as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "page.png"
    found.write_bytes(b"\x07 a picture")
    return found


async def test_images_and_texts_are_split_at_the_limit_of_images(server: ScriptedServer, file: Path) -> None:
    # 137 is the first byte of a PNG
    inputs = [file, "four", b"\x09", Image.new("RGB", (3, 2), "red"), {"image": file, "text": "of a page"}]
    expected = [7, 4, 9, 137, 7]
    with MultiVectorEncoder(server.url) as model:
        assert [rows.tolist() for rows in model.encode_document(inputs)] == [[[number]] for number in expected]
        sent = sorted(server.posted, key=lambda request: len(request.data["inputs"]))
        assert [len(request.data["inputs"]) for request in sent] == [1, 2, 2]
        assert sent[0].data["inputs"][0] == {
            "text": "of a page",
            "image": base64.b64encode(file.read_bytes()).decode(),
        }
        assert sent[0].data["input_type"] == "document"
        assert model.encode_document(file).tolist() == [[7]]
        # a path that is a str is a text
        assert model.encode_document([str(file)])[0].tolist() == [[len(str(file))]]
        assert server.posted[-1].data["texts"] == [str(file)]
        ranking = model.rank("q", inputs, top_k=2, return_documents=True)
        assert [(each["corpus_id"], each["score"]) for each in ranking] == [(3, 137), (2, 9)]
        assert ranking[1]["image"] == b"\x09"
    async with AsyncMultiVectorEncoder(server.url) as awaited:
        assert [rows.tolist() for rows in await awaited.encode_document(inputs)] == [[[n]] for n in expected]


async def test_an_event_loop_does_not_wait_for_files(
    server: ScriptedServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    read = documents._read

    def noted(found: str | Path | bytes, *, param: str) -> bytes:
        threads.add(threading.get_ident())
        return read(found, param=param)

    monkeypatch.setattr(documents, "_read", noted)
    async with AsyncMultiVectorEncoder(server.url) as model:
        rows = await model.encode_document([file] * 7)
        assert [each.tolist() for each in rows] == [[[7]]] * 7
        await model.rank("q", [file] * 5)
    assert threads
    assert threading.get_ident() not in threads


def test_an_image_of_pillow_is_sent_without_loss(server: ScriptedServer) -> None:
    pictures = [
        Image.effect_noise((5, 4), 90).convert(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
    ]
    with MultiVectorEncoder(server.url) as model:
        for picture in pictures:
            model.encode_document(picture)
            content = base64.b64decode(server.posted[-1].data["inputs"][0]["image"])
            with Image.open(io.BytesIO(content)) as found:
                assert found.format == "PNG"
                kept = picture if picture.mode == found.mode else picture.convert("RGB")
                assert (found.mode, found.tobytes()) == (kept.mode, kept.tobytes())
        for mode in ("F", "I", "I;16"):
            with pytest.raises(ArgumentError, match="mode") as caught:
                model.encode_document(["a", Image.new(mode, (3, 3))])
            assert caught.value.param == "inputs[1]"


@pytest.mark.parametrize(
    ("mode", "instead"),
    [
        # Pillow's convert would clip them to white
        *((mode, "scale its pixels to 8 bits a channel") for mode in ("I", "I;16", "F")),
        *((mode, "convert it to RGBA") for mode in ("PA", "RGBa")),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused_with_what_can_be(
    server: ScriptedServer, mode: str, instead: str
) -> None:
    with (
        MultiVectorEncoder(server.url) as model,
        pytest.raises(ArgumentError, match=f"{mode} cannot be sent; {instead}"),
    ):
        model.encode_document(Image.new(mode, (2, 2)))


def test_pages_of_a_pdf_become_as_many_requests_as_the_limit_requires(server: ScriptedServer) -> None:
    wanted = [9, 1, 2, 3, 4, 5, 6]
    inputs = ["four", Pdf(b"%PDF-", " 9, 1-6 ", dpi=72), "sixsix", Pdf(b"%PDF-")]
    with MultiVectorEncoder(server.url) as model:
        first, pages, second, everything = model.encode_document(inputs)
        assert (first.tolist(), second.tolist()) == ([[4]], [[6]])
        assert [page.tolist() for page in pages] == [[[number]] for number in wanted]
        assert len(everything) == 2
        # a list of pages alone, which similarity takes
        alone = model.encode_document(Pdf(b"%PDF-", "3"))
        np.testing.assert_array_equal(model.similarity(np.ones((1, 1), np.float32), alone), [[3]])
    sent = [request.data for request in server.posted if "pdf" in request.data]
    assert sorted(str(data.get("pages")) for data in sent) == ["3", "3,4,5", "6", "9,1,2", "None"]
    assert {data.get("dpi") for data in sent} == {72, None}
    assert {base64.b64decode(data["pdf"]) for data in sent} == {b"%PDF-"}


def test_each_page_of_a_pdf_is_ranked_by_itself(server: ScriptedServer) -> None:
    documents = ["four", Pdf(b"%PDF-", "9,1-6", dpi=72), "sixsix", b"\x08", Pdf(b"%PDF-")]
    with MultiVectorEncoder(server.url) as model:
        ranking = model.rank("q", documents, return_documents=True)
        found = [(each["corpus_id"], each.get("page"), each["score"]) for each in ranking]
        assert found == [
            *[(1, 9, 9), (3, None, 8), (1, 6, 6), (2, None, 6), (1, 5, 5)],
            *[(0, None, 4), (1, 4, 4), (1, 3, 3), (1, 2, 2), (4, 2, 2), (1, 1, 1), (4, 1, 1)],
        ]
        assert [each.keys() - {"corpus_id", "score"} for each in ranking[:4]] == [
            {"page", "pdf"},
            {"image"},
            {"page", "pdf"},
            {"text"},
        ]
        assert ranking[0]["pdf"] is documents[1]
        sent = [request.data["documents"] for request in server.posted]
        assert sorted(map(len, sent)) == [1, 1, 1, 1, 1, 2]
        content = base64.b64encode(b"%PDF-").decode()
        assert [{"pdf": content, "pages": "6", "dpi": 72}] in sent
        assert [{"pdf": content}] in sent
        # of equal scores the first document comes first
        top = model.rank("q", documents, top_k=3)
        assert [(each["corpus_id"], each.get("page")) for each in top] == [(1, 9), (3, None), (1, 6)]
        server.handler = lambda data: refusal(400, "page 9 is not there", "data.documents[0].pages")
        with pytest.raises(InvalidRequestError) as caught:
            model.rank("q", [Pdf(b"%PDF-", "9")])
        assert caught.value.param == "data.documents[0].pages"
        server.handler = lambda data: (
            refusal(400, "page 9 is not there", "data.documents[0].pages")
            if isinstance(data["documents"][0], dict)
            else visual(data)
        )
        with pytest.raises(InvalidRequestError) as caught:
            model.rank("q", ["a", "b", Pdf(b"%PDF-", "9")])
        assert caught.value.param == "data.documents[2].pages"


ADDRESS = "https://pages.example.com/1.png"


@pytest.mark.parametrize("address", [ADDRESS, httpx.URL(ADDRESS), "HTTP://pages.example.com/1.png"])
async def test_an_address_is_sent_as_it_is(server: ScriptedServer, address: Any) -> None:
    written = str(address)
    with MultiVectorEncoder(server.url) as model:
        assert model.encode_document([{"image": address}, "four"])[0].tolist() == [[len(written)]]
        assert server.posted[-1].data["inputs"] == [{"image": written}, "four"]
        model.encode_document(Pdf(address, "2,3", dpi=72))
        assert server.posted[-1].data["pdf"] == written
        model.rank("q", [Pdf(address)])
        assert server.posted[-1].data["documents"] == [{"pdf": written}]
        model.rank("q", [{"image": address, "text": "of a page"}])
        assert server.posted[-1].data["documents"] == [{"text": "of a page", "image": written}]
        # a str by itself is a text, whatever it looks like
        one = model.encode_document(address)
        assert one.tolist() == [[len(written)]]
        assert server.posted[-1].data.get("texts" if isinstance(address, str) else "inputs") == [
            written if isinstance(address, str) else {"image": written}
        ]
    async with AsyncMultiVectorEncoder(server.url) as awaited:
        assert (await awaited.encode_document([{"image": address}]))[0].tolist() == [[len(written)]]


def test_a_refusal_names_the_position_in_the_call(server: ScriptedServer) -> None:
    def refusing(data: Any) -> Reply:
        if "pdf" in data:
            return refusal(400, "page 9 is not there", "data.pages")
        return refusal(400, "not an image", "data.inputs[1].image") if 9 in pages_of(data) else visual(data)

    server.handler = refusing
    with MultiVectorEncoder(server.url) as model:
        for inputs, param in (
            ([b"\x01", b"\x02", b"\x03", b"\x09"], "data.inputs[3].image"),
            (["a", Pdf(b"%PDF-", "9")], "inputs[1].pages"),
        ):
            with pytest.raises(InvalidRequestError) as caught:
                model.encode_document(inputs, batch_size=2)
            assert caught.value.param == param


WRONG: Any = {
    "inputs[1]": {"inputs": ["a", 1]},
    "inputs[0]": {"inputs": [{"picture": b"a"}]},
    "a list of lists": {"inputs": [["a"]], "param": "inputs[0]"},
    "no such file": {"inputs": [Path("/no/such/file.png")], "param": "inputs[0]"},
    "no such pdf": {"inputs": [Pdf("/no/such/file.pdf")], "param": "inputs[0]"},
    "a large image": {"inputs": [b"a" * 5001], "param": "inputs[0]"},
    "a large pdf": {"inputs": [Pdf(b"a" * 51)], "param": "inputs[0]"},
    "an image that is a str": {"inputs": [{"image": "page.png"}], "param": "inputs[0]"},
    "an address of a file": {"inputs": [{"image": "file:///etc/hostname"}], "param": "inputs[0]"},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_document_is_refused_before_anything_is_sent(server: ScriptedServer, name: str) -> None:
    with MultiVectorEncoder(server.url) as model:
        with pytest.raises(ArgumentError) as caught:
            model.encode_document(WRONG[name]["inputs"])
        assert caught.value.param == WRONG[name].get("param", name)
    assert server.posted == []


def test_images_are_documents_of_visual_servers_only(server: ScriptedServer) -> None:
    with MultiVectorEncoder(server.url) as model:
        for wrong in (b"\x01", Pdf(b"%PDF-"), {"image": ADDRESS}):
            with pytest.raises(ArgumentError) as caught:
                model.encode_query(["a", wrong])
            assert caught.value.param == "inputs[1]"
    with ScriptedServer("moderncolbert", visual) as texts, MultiVectorEncoder(texts.url) as model:
        for each in (b"\x01", Pdf(b"%PDF-"), {"image": ADDRESS}):
            with pytest.raises(ArgumentError, match="moderncolbert have no field"):
                model.encode_document(["a", each])
            with pytest.raises(ArgumentError, match="moderncolbert have no field") as caught:
                model.rank("q", ["a", each])
            assert caught.value.param == "documents[1]"


@pytest.mark.parametrize("pages", ["", "0", "3-1", "1,1", "1-3,2", "a", "1-", "-1", "1-999999999", "١", 3, [1, 2]])
def test_pages_that_are_none_are_refused_by_name(pages: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        Pdf(b"%PDF-", pages)
    assert caught.value.param == "pages"


@pytest.mark.parametrize("dpi", [0, -1, "100", 72.5])
def test_dots_that_are_none_are_refused_by_name(dpi: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        Pdf(b"%PDF-", dpi=dpi)
    assert caught.value.param == "dpi"


def test_pillow_is_not_imported() -> None:
    program = "import sys, encoder_client; sys.exit('imported' if 'PIL' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).returncode == 0
