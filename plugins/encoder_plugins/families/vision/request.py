"""Requests to visual retrievers: those of text retrievers, and images wherever a document may stand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import request as retrieval
from encoder_plugins.families.retrieval import rerank
from encoder_plugins.families.retrieval.fields import side_of
from encoder_plugins.families.retrieval.request import Embeddings, RetrievalLimits, Wanted
from encoder_plugins.families.retrieval.scoring import ImageFile, Scoring, Texts
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.body import Data
from encoder_plugins.inputs.image import content_of
from encoder_plugins.inputs.pdf import DEFAULT_DPI, Pdf, pdf_of
from encoder_plugins.inputs.text import check_texts

# Unicode's own: what stands for an object in a text
IMAGE = "\ufffc"
IMAGE_FIELDS = ("image", "images", "inputs", "pdf")
# of a request for scores
_SCORING_FIELDS = ("query", "queries", "top_k")

_ADDRESS = "or an https address of a host that the server allows"
_FORMS = (
    "in base64, or as data:image/png;base64,...; PNG, JPEG, WebP, TIFF, or GIF, of which only the first frame is read;"
    f" {_ADDRESS}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualLimits(RetrievalLimits):
    """The limits of requests; ``limits.LIMITS`` describes them."""

    images: int
    image_bytes: int
    image_pixels: int
    image_seconds: int
    image_cache_bytes: int
    pdf_bytes: int
    pdf_fetch_seconds: int
    pdf_pages: int
    pdf_dpi: int
    pdf_page_pixels: int
    pdf_seconds: int
    pdf_memory_bytes: int
    pdf_in_flight: int


class Item(Data, frozen=True):
    """A text, an image, or both where the plugin takes texts of images."""

    text: str | None = None
    image: Annotated[str | None, Meta(description=f"An image {_FORMS}.")] = None


DocumentsField: TypeAlias = Annotated[
    list[str | Item] | None, Meta(description="The documents to score: texts, or objects with a `text` or an `image`.")
]

RerankedField: TypeAlias = Annotated[
    list[str | Item], Meta(description="Texts, or objects with a `text` or an `image`.")
]


class VisualRequest(retrieval.Request, frozen=True):
    """Texts and images whose rows are wanted, or documents to score by queries."""

    image: Annotated[
        str | None,
        Meta(description=f"One image, {_FORMS}. One of this, `images`, `text`, `texts`, `inputs` and `pdf`."),
    ] = None
    images: Annotated[list[str] | None, Meta(description="Several images; the answer keeps their order.")] = None
    inputs: Annotated[
        list[str | Item] | None, Meta(description="Documents, texts and images mixed; the answer keeps their order.")
    ] = None
    pdf: Annotated[
        str | None,
        Meta(
            description=f"One PDF, in base64, or as data:application/pdf;base64,...; {_ADDRESS}. Each of its pages is a document"
            " with rows of its own."
        ),
    ] = None
    pages: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        Meta(description="Pages of `pdf`, from 1, such as 1-3,7; the answer keeps their order. Null for all of them."),
    ] = None
    dpi: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description=f"Dots per inch at which pages of `pdf` are rendered; null for {DEFAULT_DPI}."),
    ] = None
    documents: DocumentsField = None  # type: ignore[assignment]


class VisualEmbeddings(Embeddings, frozen=True):
    """The rows of each document, in the order of the documents."""

    pages: Annotated[
        list[int] | UnsetType, Meta(description="The page of each of `embeddings`, where the request has `pdf`.")
    ] = UNSET


class VisualRowsAnswer(msgspec.Struct, frozen=True):
    """The body of a response with rows."""

    data: VisualEmbeddings


class VisualRerankRequest(rerank.RerankRequest, frozen=True):
    """One query, and documents to rank by it, images among them: Cohere's request, and Jina's."""

    documents: RerankedField  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class PdfPages(Texts):
    """The pages of a PDF; one character stands for all of them among ``texts``.

    Attributes:
        pdf: What is rendered.
    """

    pdf: Pdf


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What requests are held to.

    Attributes:
        limits: The numbers.
        captions: Whether an image may have a text.
        hosts: From where images and PDFs may be fetched.
    """

    limits: VisualLimits
    captions: bool
    hosts: Collection[str] = ()


def check_rerank(data: VisualRerankRequest, rules: Rules) -> Scoring:
    """Return what a reranking wants scored.

    Args:
        data: The request.
        rules: What it is held to.

    Raises:
        InvalidRequest: It exceeds a limit, or requests something that is not done.
    """
    texts, images = split(data.documents, rules, path="documents")
    if images and data.return_documents:
        raise InvalidRequest("images are not repeated; leave the field out", param="return_documents")
    # nothing is cut, whatever a client says about that
    plain = msgspec.structs.replace(data, documents=texts, truncation=None)
    found = rerank.check_rerank(plain, rules.limits, most_tokens=None)
    return replace(found, documents=replace(found.documents, images=images))


def check(data: VisualRequest, rules: Rules) -> tuple[Texts, Wanted] | Scoring:
    """Return what a request wants.

    Args:
        data: The request.
        rules: What it is held to.

    Raises:
        InvalidRequest: It wants nothing, or two things at once, or exceeds a limit.
    """
    given = [name for name in (*IMAGE_FIELDS, "text", "texts", "documents") if getattr(data, name) is not None]
    if len(given) > 1 and given[0] in IMAGE_FIELDS:
        raise InvalidRequest(f"{given[0]} and {given[1]} are both there; send one of them", param=f"data.{given[0]}")
    if data.pdf is None and (name := next((n for n in ("pages", "dpi") if getattr(data, n) is not None), None)):
        raise InvalidRequest(f"{name} is about pages of a PDF, and there is no pdf", param=f"data.{name}")
    if data.documents is not None:
        texts, images = split(data.documents, rules, path="data.documents")
        found = retrieval.check(msgspec.structs.replace(data, documents=texts), rules.limits)
        assert isinstance(found, Scoring)
        return replace(found, documents=replace(found.documents, images=images))
    if not given or given[0] not in IMAGE_FIELDS:
        return retrieval.check(data, rules.limits)
    if name := next((name for name in _SCORING_FIELDS if getattr(data, name) is not None), None):
        raise InvalidRequest(
            f"{given[0]} and {name} are both there; scores are those of documents", param=f"data.{name}"
        )
    if side_of(data.input_type, data.is_query) == "query":
        raise InvalidRequest(f"{given[0]} are documents; send queries as texts", param="data.input_type")
    if data.return_tokens:
        raise InvalidRequest(
            "images and pages have rows that no token stands for; leave the field out", param="data.return_tokens"
        )
    return _documents(data, rules)


def _documents(data: VisualRequest, rules: Rules) -> tuple[Texts, Wanted]:
    limits = rules.limits
    if data.pdf is not None:
        pdf = pdf_of(data.pdf, data.pages, data.dpi, limits, path="data", hosts=rules.hosts)
        found, wanted = retrieval.rows_wanted(
            msgspec.structs.replace(data, input_type="document"), [IMAGE], path="data.pdf"
        )
        return PdfPages(texts=found.texts, path=found.path, kind=found.kind, pdf=pdf), wanted
    path = "data.inputs[{}]"
    if data.inputs is not None:
        texts, images = split(data.inputs, rules, path="data.inputs")
        check_texts(texts, limits, path="data.inputs")
    else:
        files = [data.image] if data.image is not None else data.images or []
        path = "data.image" if data.image is not None else "data.images[{}]"
        if not files:
            raise InvalidRequest("the list is empty; it takes at least one image", param="data.images")
        _check_count(len(files), limits, path="data.images")
        fields = [path.format(position) for position in range(len(files))]
        images = {
            position: _image(file, rules, path=field)
            for position, (field, file) in enumerate(zip(fields, files, strict=True))
        }
        texts = [IMAGE] * len(files)
    found, wanted = retrieval.rows_wanted(msgspec.structs.replace(data, input_type="document"), texts, path=path)
    return replace(found, images=images), wanted


def split(items: Sequence[str | Item], rules: Rules, *, path: str) -> tuple[list[str], dict[int, ImageFile]]:
    """Return the texts, with a character in the place of each image without a text, and the images by position.

    Args:
        items: Texts and images.
        rules: What images are held to.
        path: The field that holds the items.

    Raises:
        InvalidRequest: An item is neither, or both where an image has no text, or an image exceeds a limit.
    """
    _check_count(sum(not isinstance(item, str) and item.image is not None for item in items), rules.limits, path=path)
    texts, images = [], {}
    for position, item in enumerate(items):
        text, image = (item, None) if isinstance(item, str) else (item.text, item.image)
        if (text is None and image is None) or (text is not None and image is not None and not rules.captions):
            says = "an item has text, image, or both" if rules.captions else "an item has either text or image"
            raise InvalidRequest(says, param=f"{path}[{position}]")
        if image is not None:
            field = f"{path}[{position}].image"
            # an empty text is none, as in the library
            text = text or None
            images[position] = replace(_image(image, rules, path=field), text=text)
        texts.append(IMAGE if text is None else text)
    return texts, images


def _image(value: str, rules: Rules, *, path: str) -> ImageFile:
    if rules.hosts and remote.is_address(value):
        return ImageFile(path=path, address=remote.check(value, rules.hosts, path=path))
    return ImageFile(path=path, content=content_of(value, rules.limits, path=path))


def _check_count(images: int, limits: VisualLimits, *, path: str) -> None:
    if images > limits.images:
        raise InvalidRequest(f"{images} images; the limit is {limits.images} a request", param=path)
