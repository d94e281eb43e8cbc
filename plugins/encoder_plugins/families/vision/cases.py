"""The built-in cases of visual retrievers: texts of both kinds, images of all shapes, and scores of both. Standard library only.

Images are drawn here and stored as PNG in the artifact, so that the library and a server get the same bytes.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.cases import MOST_DOCUMENTS, QUESTION, WORDS
from encoder_plugins.families.retrieval.cases import PASSAGES as TEXT_PASSAGES
from encoder_plugins.families.retrieval.cases import TEXTS as RETRIEVAL_TEXTS
from encoder_plugins.families.retrieval.config import InputType

# what a user's case may have beside its id
OPTIONS = {"text": None, "image": None, "input_type": None, "documents": None}

# the other texts have tokens that requests may not contain
TEXTS: Mapping[str, str] = {
    name: text for name, text in RETRIEVAL_TEXTS.items() if name not in ("markers", "markers-alone")
}
PASSAGES: Sequence[str] = TEXT_PASSAGES

Document: TypeAlias = "str | Mapping[str, str]"


class Case(TypedDict):
    """One text or image whose rows are compared, or one query whose documents are scored.

    Attributes:
        id: The case's name.
        input_type: What the text is; an image is a document.
        text: The text; None for an image without one.
        image: The file of the image in base64; None for a text.
        documents: What the text, a query, scores, objects with an ``image``, and a ``text`` where images have one, among them; None
            where rows are compared.
    """

    id: str
    input_type: InputType
    text: str | None
    image: str | None
    documents: list[Document] | None


# of a user's cases; each takes the library seconds on a CPU
MOST_IMAGES = 16

# width and height; scaled up, scaled down, kept, and of ratios that are hard to keep
SIZES: Mapping[str, tuple[int, int]] = {
    "small": (20, 12),
    "square": (320, 320),
    "odd": (333, 517),
    "wide": (1500, 40),
    "tall": (40, 1500),
    "page": (620, 877),
    "large": (1654, 2339),
}


def built_in(*, captions: bool = False) -> list[Case]:
    """Return the built-in cases; with ``captions``, those of images with a text, too."""
    found = [_case(f"{kind}-{name}", kind, text) for kind in ("query", "document") for name, text in TEXTS.items()]
    images = {name: picture(width, height, seed) for seed, (name, (width, height)) in enumerate(SIZES.items())}
    found += [_case(f"image-{name}", "document", None, image=image) for name, image in images.items()]
    found += [_case(f"image-twin-{number}", "document", None, image=images["odd"]) for number in (1, 2)]
    if captions:
        long = " ".join(WORDS * 200)
        found += [
            _case("caption-word", "document", "bread", image=images["small"]),
            _case("caption-passage", "document", PASSAGES[0], image=images["page"]),
            _case("caption-odd", "document", TEXTS["whitespace-around"], image=images["odd"]),
            # cut where the published processor does
            _case("caption-long", "document", long, image=images["square"]),
            _case(
                "score-captions", "query", QUESTION, [{"image": images["odd"], "text": each} for each in PASSAGES[:4]]
            ),
        ]
    seen: list[Document] = [{"image": images[name]} for name in ("square", "page", "tall")]
    found += [
        _case("score-texts", "query", QUESTION, list(PASSAGES)),
        _case("score-images", "query", "quiet gardens", seen),
        _case("score-mixed", "query", QUESTION, [PASSAGES[0], seen[0], PASSAGES[4], seen[1], PASSAGES[6]]),
        _case("score-one", "query", "bread", [{"image": images["small"]}]),
        _case("score-long", "query", " ".join(WORDS * 4), [seen[0], PASSAGES[3]]),
    ]
    return found


def user_cases(inputs: Inputs, others: Sequence[Case], *, captions: bool = False) -> list[Case]:
    """Return a user's own cases.

    Args:
        inputs: What the user gave.
        others: The cases whose names are taken.
        captions: Whether an image may have a text.

    Raises:
        Unsupported: One is not a case.
    """
    found = []
    for values in complete(inputs, (), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, image, kind, documents = (values[name] for name in ("text", "image", "input_type", "documents"))
        for name, value in (("text", text), ("image", image)):
            if value is not None and not (isinstance(value, str) and value):
                raise Unsupported(f"{where}: {name} is not a text")
        if (text is None and image is None) or (text is not None and image is not None and not captions):
            raise Unsupported(f"{where}: a case has either text or image")
        kind = kind or ("query" if image is None else "document")
        if kind not in ("query", "document") or (image is not None and kind != "document"):
            raise Unsupported(f"{where}: input_type is query or document; an image is a document")
        if documents is not None:
            if kind != "query":
                raise Unsupported(f"{where}: documents are scored by a query")
            if not isinstance(documents, list) or not 0 < len(documents) <= MOST_DOCUMENTS:
                raise Unsupported(f"{where}: documents is not a list of 1 to {MOST_DOCUMENTS} texts and images")
            if not all(_is_document(each, captions=captions) for each in documents):
                raise Unsupported(f"{where}: one of documents is neither a text nor an object with an image")
        found.append(_case(values["id"], kind, text, documents, image=image))
    # all images are sent in one request, beside the built-in ones
    images = sum(case["image"] is not None for case in found)
    most = max([images, *(sum(isinstance(each, dict) for each in case["documents"] or ()) for case in found)])
    if most > MOST_IMAGES:
        raise Unsupported(
            f"inputs: {most} images; at most {MOST_IMAGES} are compared, and as many of one query's documents"
        )
    return found


def _is_document(value: Any, *, captions: bool) -> bool:
    if isinstance(value, dict):
        known = {"image", "text"} if captions else {"image"}
        return "image" in value and value.keys() <= known and all(isinstance(part, str) for part in value.values())
    return isinstance(value, str) and bool(value)


def _case(
    name: str, kind: str, text: str | None, documents: list[Document] | None = None, *, image: str | None = None
) -> Case:
    return Case(
        id=name,
        input_type="query" if kind == "query" else "document",
        text=text,
        image=image,
        documents=documents,
    )


def picture(width: int, height: int, seed: int = 0) -> str:
    """Return a PNG in base64 that looks a little like a page: blocks of colour, and lines of dark dashes.

    Args:
        width: Pixels.
        height: Pixels.
        seed: Another number draws another picture.
    """
    block = max(4, min(width, height) // 6)
    rows = []
    for row in range(height):
        line = bytearray()
        inked = row % 24 in range(8, 15)
        for column in range(width):
            if inked and (column * 7 + row // 24 * 13 + seed * 5) % 29 < 11:
                line += bytes((20 + seed * 3, 24, 40))
            else:
                spot = (column // block) * 37 + (row // block) * 91 + seed * 53
                line += bytes((spot * 29 % 256, spot * 71 % 256, 255 - spot * 13 % 256))
        rows.append(b"\0" + bytes(line))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))
    return base64.b64encode(content).decode("ascii")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
