"""Documents that are not texts: images, and the pages of PDFs, from files or by their addresses.

Pillow is used where a caller passes an image of it, and not imported.
"""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from encoder_client.errors import ArgumentError
from encoder_client.server import Server
from encoder_client.work import Item, json_of, listed, positive

# of Pillow's modes, those that a PNG has, and those that become RGB as on a server; one channel of 16 or 32 bits would be clipped
_OF_PNG = ("1", "L", "LA", "P", "RGB", "RGBA")
_TO_RGB = ("CMYK", "YCbCr", "LAB", "HSV", "RGBX")
_PAGES = re.compile(r" *\d{1,9}(-\d{1,9})? *(, *\d{1,9}(-\d{1,9})? *)*", re.ASCII)
_MOST_PAGES = 100_000
_KEYS = frozenset({"text", "image"})
_SCHEMES = ("https://", "http://")

Document: TypeAlias = "str | Path | bytes | Pdf | Mapping[str, Any] | Any"


@dataclass(frozen=True, slots=True)
class Pdf:
    """Pages of a PDF, each of which is a document with rows of its own; the server renders them.

    Attributes:
        file: Its path, or its content; or its address (``https://...``), a ``str`` or an object that is written as one, such as
            ``httpx.URL``: the server fetches it where its administrator allows the host.
        pages: From 1, such as ``1-3,7``, in the order wanted; None for all of them. More than the server takes in one request (its limit
            ``pdf_pages``) become several requests where they are named here.
        dpi: Dots per inch; None for the server's default.

    Raises:
        ArgumentError: ``pages`` or ``dpi`` is wrong; ``param`` is its name.
    """

    file: Any
    pages: str | None = None
    dpi: int | None = None

    def __post_init__(self) -> None:
        if self.dpi is not None:
            positive(self.dpi, param="dpi")
        self.numbers()

    def numbers(self) -> list[int] | None:
        """Return the pages wanted; None for all of them."""
        if self.pages is None:
            return None
        if not isinstance(self.pages, str) or not _PAGES.fullmatch(self.pages):
            raise ArgumentError("pages are numbers from 1 and ranges of them, such as 1-3,7", param="pages")
        found: dict[int, None] = {}
        for part in self.pages.split(","):
            first, _, last = part.partition("-")
            wanted = range(int(first), int(last or first) + 1)
            if not wanted or wanted[0] < 1 or len(found) + len(wanted) > _MOST_PAGES:
                raise ArgumentError(
                    f"{part} is not a page or a range of them, or they are more than {_MOST_PAGES}", param="pages"
                )
            if twice := next((number for number in wanted if number in found), None):
                raise ArgumentError(f"page {twice} is there twice", param="pages")
            found |= dict.fromkeys(wanted)
        return list(found)

    def parts(self, server: Server) -> list[str | None]:
        """Return ``pages`` of each request."""
        numbers, most = self.numbers(), server.limit("pdf_pages")
        if numbers is None or most is None or len(numbers) <= most:
            return [self.pages]
        return [",".join(map(str, numbers[start : start + most])) for start in range(0, len(numbers), most)]


def is_one(inputs: Any) -> bool:
    """Return whether the argument of a call is one document, and not several."""
    return (
        isinstance(inputs, str | Path | bytes | Pdf | Mapping) or _is_picture(inputs) or address_of(inputs) is not None
    )


def is_image(document: Document) -> bool:
    """Return whether a document is an image, with or without a text."""
    if isinstance(document, Mapping):
        return document.get("image") is not None
    if isinstance(document, str):
        return False
    return isinstance(document, Path | bytes) or _is_picture(document) or address_of(document) is not None


def address_of(file: Any) -> str | None:
    """Return the address of a file, as which a ``str`` or an object like ``httpx.URL`` is sent; None for a file that is read here."""
    if isinstance(file, bytes | Path | Mapping) or _is_picture(file) or hasattr(file, "tolist"):
        return None
    if isinstance(file, Sequence) and not isinstance(file, str):
        return None
    written = str(file)
    return written if written[:8].lower().startswith(_SCHEMES) else None


def documents_of(inputs: Any, server: Server, *, param: str) -> list[Document]:
    """Return a list of documents. Files are not read yet.

    Args:
        inputs: The documents, or a column of a table.
        server: Its limits bound the sizes of files.
        param: What the caller calls them.

    Raises:
        ArgumentError: One is neither a text nor an image, or a file is not there, or too large.
    """
    documents = listed(inputs, param=param)
    for place, document in enumerate(documents):
        field = f"{param}[{place}]"
        if isinstance(document, Pdf):
            server.require("pdf", argument=field)
            _check_file(document.file, server, "pdf_bytes", param=field)
        elif isinstance(document, Mapping) and (not document or not _KEYS.issuperset(document)):
            raise ArgumentError("a document that is a mapping has text, image, or both", param=field)
        elif is_image(document):
            server.require("image", argument=field)
            _check_file(_image_of(document), server, "image_bytes", param=field)
        elif not isinstance(_text_of(document), str):
            raise ArgumentError(f"it is {type(document).__name__}, not a text, an image or a Pdf", param=field)
    return documents


def items(
    documents: Sequence[Document], server: Server, field: str, *, param: str, among: bool = False
) -> Iterator[Item]:
    """Yield documents as items, whose files are read as they are sent; a Pdf is one item for each of its requests.

    Args:
        documents: As ``documents_of`` returned them.
        server: Its limits decide how many requests the pages of a PDF are.
        field: What the request calls the list of texts and images.
        param: What the caller calls it.
        among: Whether a PDF is one of that list, too, and not the request's own field.

    Raises:
        ArgumentError: A file cannot be read, or an image cannot be sent.
    """
    for place, document in enumerate(documents):
        path = f"{param}[{place}]"
        if isinstance(document, Pdf):
            content = _sent(document.file, param=path)
            for part, pages in enumerate(document.parts(server)):
                given = {"pages": pages, "dpi": document.dpi}
                named = {name: json_of(value, param=path) for name, value in given.items() if value is not None}
                own = {"pdf": content, **named}
                if among:
                    written = b"{" + b", ".join(b'"%s": %s' % (name.encode(), own[name]) for name in own) + b"}"
                    yield Item(values={field: written}, characters=1, place=place, part=part, alone=True)
                else:
                    yield Item(values={}, own=own, characters=1, place=place, part=part, alone=True)
            continue
        text = _text_of(document)
        written = b"" if text is None else json_of(text, param=path)
        if is_image(document):
            image = b'"image": ' + _sent(_image_of(document), param=path)
            written = b"{" + (b'"text": ' + written + b", " if written else b"") + image + b"}"
        yield Item(values={field: written}, characters=len(text or " "), place=place)


def _is_picture(value: Any) -> bool:
    # who has an image of Pillow has imported it
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _text_of(document: Document) -> Any:
    return document.get("text") if isinstance(document, Mapping) else document if isinstance(document, str) else None


def _image_of(document: Document) -> Any:
    return document["image"] if isinstance(document, Mapping) else document


def _check_file(file: Any, server: Server, limit: str, *, param: str) -> None:
    if address_of(file) is not None:
        return
    if isinstance(file, bytes):
        size = len(file)
    elif isinstance(file, str | Path):
        try:
            size = Path(file).stat().st_size
        except OSError as error:
            raise ArgumentError(f"{file}: {error.strerror}", param=param) from None
    elif _is_picture(file):
        return
    else:
        raise ArgumentError(f"it is {type(file).__name__}, not a path, bytes or an image of Pillow", param=param)
    most = server.limit(limit)
    if most is not None and size > most:
        raise ArgumentError(f"{size} bytes; the server's limit is {most} ({limit})", param=param)


def _read(file: str | Path | bytes, *, param: str) -> bytes:
    if isinstance(file, bytes):
        return file
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ArgumentError(f"{file}: {error.strerror}", param=param) from None


def _file_of(image: Any, *, param: str) -> bytes:
    if not _is_picture(image):
        return _read(image, param=param)
    if image.mode not in (*_OF_PNG, *_TO_RGB):
        # Pillow's convert makes nearly all pixels of the former white, and those of the latter opaque
        deep = image.mode.startswith(("I", "F"))
        instead = "scale its pixels to 8 bits a channel" if deep else "convert it to RGBA"
        raise ArgumentError(f"an image of mode {image.mode} cannot be sent; {instead}", param=param)
    stream = io.BytesIO()
    try:
        # without loss; hardly larger than with the default level, and several times as fast
        (image if image.mode in _OF_PNG else image.convert("RGB")).save(stream, "PNG", compress_level=1)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"the image cannot be sent: {error}", param=param) from None
    return stream.getvalue()


def _sent(file: Any, *, param: str) -> bytes:
    """Return what is sent for a file, as JSON."""
    if (address := address_of(file)) is not None:
        return json_of(address, param=param)
    return b'"' + base64.b64encode(_file_of(file, param=param)) + b'"'
