"""Requests to visual retrievers: those of text retrievers, and images wherever a document may stand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import request as retrieval
from encoder_plugins.families.retrieval import rerank
from encoder_plugins.families.retrieval.fields import side_of
from encoder_plugins.families.retrieval.request import Embeddings, RetrievalLimits, Wanted
from encoder_plugins.families.retrieval.scoring import Ranking, Scores, Scoring, Texts
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.body import Data
from encoder_plugins.inputs.image import content_of
from encoder_plugins.inputs.pdf import DEFAULT_DPI, Pdf, pdf_of
from encoder_plugins.inputs.text import check_texts

# Unicode's own: what stands for an object in a text
IMAGE = "\ufffc"
IMAGE_FIELDS = ("image", "images", "inputs", "pdf")
# the fields that have documents, each page of a PDF being one, and what has the fields of one PDF
INPUTS, DATA = "data.inputs", "data"
# of a request for scores
_SCORING_FIELDS = ("query", "queries", "top_k")

_ADDRESS = "or an https address of a host that the server allows"
_FORMS = (
    "in base64, or as data:image/png;base64,...; PNG, JPEG, WebP, TIFF, or GIF, of whose frames or pages only the first is read;"
    f" {_ADDRESS}"
)
_PDF_FORMS = f"in base64, or as data:application/pdf;base64,...; {_ADDRESS}"


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


PagesField: TypeAlias = Annotated[
    Annotated[str, Meta(max_length=1000)] | None,
    Meta(description="Pages of `pdf`, from 1, such as 1-3,7; the answer keeps their order. Null for all of them."),
]
DpiField: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description=f"Dots per inch at which pages of `pdf` are rendered; null for {DEFAULT_DPI}."),
]


class Item(Data, frozen=True):
    """A text, an image, or both where the plugin takes texts of images; or a PDF."""

    text: str | None = None
    image: Annotated[str | None, Meta(description=f"An image {_FORMS}.")] = None
    pdf: Annotated[
        str | None, Meta(description=f"One PDF {_PDF_FORMS}. Each of its pages is a document of its own.")
    ] = None
    pages: PagesField = None
    dpi: DpiField = None


DocumentsField: TypeAlias = Annotated[
    list[str | Item] | None,
    Meta(description="The documents to score: texts, or objects with a `text`, an `image` or a `pdf`."),
]

RerankedField: TypeAlias = Annotated[
    list[str | Item], Meta(description="Texts, or objects with a `text`, an `image` or a `pdf`.")
]


class VisualRequest(retrieval.Request, frozen=True):
    """Texts and images whose rows are wanted, or documents to score by queries."""

    image: Annotated[
        str | None,
        Meta(description=f"One image, {_FORMS}. One of this, `images`, `text`, `texts`, `inputs` and `pdf`."),
    ] = None
    images: Annotated[list[str] | None, Meta(description="Several images; the answer keeps their order.")] = None
    inputs: Annotated[
        list[str | Item] | None,
        Meta(description="Documents, texts, images and PDFs mixed; the answer keeps their order."),
    ] = None
    pdf: Annotated[
        str | None, Meta(description=f"One PDF, {_PDF_FORMS}. Each of its pages is a document with rows of its own.")
    ] = None
    pages: PagesField = None
    dpi: DpiField = None
    documents: DocumentsField = None  # type: ignore[assignment]


class VisualEmbeddings(Embeddings, frozen=True):
    """The rows of each document, in the order of the documents."""

    indices: Annotated[
        list[int] | UnsetType,
        Meta(description="The position in `inputs` of each of `embeddings`; only where there are PDFs among them."),
    ] = UNSET
    pages: Annotated[
        list[int | None] | UnsetType,
        Meta(
            description="The page of each of `embeddings`, where the request has a PDF; null for one of `inputs` that is no PDF."
        ),
    ] = UNSET


class VisualRowsAnswer(msgspec.Struct, frozen=True):
    """The body of a response with rows."""

    data: VisualEmbeddings


class VisualRanking(Ranking, frozen=True):
    """The documents of one query, the best first; of equal scores the first in the request. Each page of a PDF is one."""

    pages: Annotated[
        list[int | None] | UnsetType,
        Meta(
            description="The page of each of `indices`, null for a document that is no PDF; only where there are PDFs among"
            " `documents`."
        ),
    ] = UNSET


class VisualScores(Scores, frozen=True):
    """The documents of each query, in the order of the queries."""

    results: list[VisualRanking]  # type: ignore[assignment]


class VisualScoresAnswer(msgspec.Struct, frozen=True):
    """The body of a response with scores."""

    data: VisualScores


class VisualRerankResult(rerank.RerankResult, frozen=True):
    """One document, or one page of a PDF, whose position is there for each of its pages."""

    page: Annotated[int | UnsetType, Meta(description="Which page of the PDF it is, from 1.")] = UNSET


class VisualRerankResponse(rerank.RerankResponse, frozen=True):
    """The documents, the best first; of equal scores the first in the request."""

    results: list[VisualRerankResult]  # type: ignore[assignment]


class VisualRerankRequest(rerank.RerankRequest, frozen=True):
    """One query, and documents to rank by it, images among them: Cohere's request, and Jina's."""

    documents: RerankedField  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """An image of a request.

    Attributes:
        path: The field that it came in.
        content: Its file; empty while it is still to be fetched.
        address: Where it is fetched; None where the request has the file.
        text: The text beside it; None for none.
    """

    path: str
    content: bytes = b""
    address: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PdfFile:
    """A PDF of a request.

    Attributes:
        path: The path of the object that has its fields.
        pdf: What is rendered.
    """

    path: str
    pdf: Pdf


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualTexts(Texts):
    """Texts, images and PDFs of one kind, by position; a character, or an image's own text, stands for each file among ``texts``.

    Attributes:
        images: Those that are images.
        pdfs: Those that are PDFs; a position stands for all pages of one.
    """

    images: Mapping[int, ImageFile] = field(default_factory=dict)
    pdfs: Mapping[int, PdfFile] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """How many documents there are at least: the pages that a request names, and 1 of a PDF without."""
        pages = sum(len(file.pdf.pages or (1,)) for file in self.pdfs.values())
        return len(self.texts) - len(self.pdfs) + pages

    def parts(self, characters: int) -> list[Texts]:
        """Return the same texts in parts, as texts without files are; with files they stay in one, since files are read together."""
        # a class with slots is made anew, which `super()` does not know
        return [self] if self.images or self.pdfs else Texts.parts(self, characters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What requests are held to.

    Attributes:
        limits: The numbers.
        captions: Whether an image may have a text.
        hosts: From where images and PDFs may be fetched.
        most_tokens: Tokens after which documents are cut; None where they are not.
    """

    limits: VisualLimits
    captions: bool
    hosts: Collection[str] = ()
    most_tokens: int | None = None


def check_rerank(data: VisualRerankRequest, rules: Rules) -> Scoring:
    """Return what a reranking wants scored.

    Args:
        data: The request.
        rules: What it is held to.

    Raises:
        InvalidRequest: It exceeds a limit, or requests something that is not done.
    """
    found = split(data.documents, rules, path="documents")
    if (found.images or found.pdfs) and data.return_documents:
        raise InvalidRequest(
            "images are not repeated, and neither are pages; leave the field out", param="return_documents"
        )
    # where nothing is cut, a client may say so
    truncation = None if rules.most_tokens is None else data.truncation
    plain = msgspec.structs.replace(data, documents=found.texts, truncation=truncation)
    return _scoring(rerank.check_rerank(plain, rules.limits, most_tokens=rules.most_tokens), found, rules)


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
        documents = split(data.documents, rules, path="data.documents")
        found = retrieval.check(msgspec.structs.replace(data, documents=documents.texts), rules.limits)
        assert isinstance(found, Scoring)
        return _scoring(found, documents, rules)
    if not given or given[0] not in IMAGE_FIELDS:
        return retrieval.check(data, rules.limits)
    if name := next((name for name in _SCORING_FIELDS if getattr(data, name) is not None), None):
        raise InvalidRequest(
            f"{given[0]} and {name} are both there; scores are those of documents", param=f"data.{name}"
        )
    if side_of(data.input_type, data.is_query) == "query":
        side = "input_type" if data.input_type is not None else "is_query"
        raise InvalidRequest("images, pages and inputs are documents; send queries as texts", param=f"data.{side}")
    if data.return_tokens:
        raise InvalidRequest(
            "images and pages have rows that no token stands for; leave the field out", param="data.return_tokens"
        )
    return _documents(data, rules)


def check_documents(count: int, limits: VisualLimits, *, path: str) -> None:
    """Refuse more documents than the limit, each page of a PDF being one; ``path`` is the field that holds them."""
    limit, most = ("texts", limits.texts) if path == INPUTS else ("documents", limits.documents)
    if count > most:
        raise InvalidRequest(
            f"{count} documents, each page of a PDF being one; the limit is {most} ({limit})", param=path
        )


def _scoring(found: Scoring, documents: VisualTexts, rules: Rules) -> Scoring:
    check_documents(documents.documents, rules.limits, path=documents.path.removesuffix("[{}]"))
    return replace(found, documents=documents)


def _documents(data: VisualRequest, rules: Rules) -> tuple[Texts, Wanted]:
    limits = rules.limits
    if data.pdf is not None:
        pdf = pdf_of(data.pdf, data.pages, data.dpi, limits, path=DATA, hosts=rules.hosts)
        found = _texts([IMAGE], path="data.pdf", pdfs={0: PdfFile(path=DATA, pdf=pdf)})
    elif data.inputs is not None:
        found = split(data.inputs, rules, path=INPUTS)
        check_texts(found.texts, limits, path=INPUTS)
        check_documents(found.documents, limits, path=INPUTS)
    else:
        path = "data.image" if data.image is not None else "data.images[{}]"
        files = [data.image] if data.image is not None else data.images or []
        if not files:
            raise InvalidRequest("the list is empty; it takes at least one image", param="data.images")
        _check_count(len(files), limits, path="data.images")
        fields = [path.format(position) for position in range(len(files))]
        images = {
            position: _image(file, rules, path=field)
            for position, (field, file) in enumerate(zip(fields, files, strict=True))
        }
        found = _texts([IMAGE] * len(files), path=path, images=images)
    _, wanted = retrieval.rows_wanted(
        msgspec.structs.replace(data, input_type="document"), found.texts, path=found.path
    )
    return found, wanted


def split(items: Sequence[str | Item], rules: Rules, *, path: str) -> VisualTexts:
    """Return the texts of a field, with its images and PDFs.

    Args:
        items: Texts, images and PDFs.
        rules: What files are held to.
        path: The field that holds the items.

    Raises:
        InvalidRequest: An item is none of them, or two where an image has no text, or a file exceeds a limit.
    """
    _check_count(sum(not isinstance(item, str) and item.image is not None for item in items), rules.limits, path=path)
    texts, images, pdfs, pages = [], {}, {}, 0
    for position, item in enumerate(items):
        where = f"{path}[{position}]"
        if not isinstance(item, str) and (file := _pdf(item, rules, path=where)) is not None:
            pages += len(file.pdf.pages or (1,))
            if pages > rules.limits.pdf_pages:
                raise InvalidRequest(
                    f"{pages} pages with those of the PDFs before it; the limit is {rules.limits.pdf_pages} a request"
                    " (pdf_pages)",
                    param=f"{where}.pages",
                )
            pdfs[position] = file
            texts.append(IMAGE)
            continue
        text, image = (item, None) if isinstance(item, str) else (item.text, item.image)
        if image is not None:
            # an empty text is none, as in the libraries: a column of a table has it where there is no text
            text = text or None
        if (text is None and image is None) or (text is not None and image is not None and not rules.captions):
            raise InvalidRequest(_one_of(item, rules), param=where)
        if image is not None:
            images[position] = replace(_image(image, rules, path=f"{where}.image"), text=text)
        texts.append(IMAGE if text is None else text)
    return _texts(texts, path=f"{path}[{{}}]", images=images, pdfs=pdfs)


def _texts(
    texts: Sequence[str],
    *,
    path: str,
    images: Mapping[int, ImageFile] | None = None,
    pdfs: Mapping[int, PdfFile] | None = None,
) -> VisualTexts:
    return VisualTexts(texts=texts, path=path, kind="document", images=images or {}, pdfs=pdfs or {})


def _pdf(item: Item, rules: Rules, *, path: str) -> PdfFile | None:
    """Return the PDF of an item; None where it has none."""
    if item.pdf is None:
        if name := next((name for name in ("pages", "dpi") if getattr(item, name) is not None), None):
            raise InvalidRequest(f"{name} is about pages of a PDF, and there is no pdf", param=f"{path}.{name}")
        return None
    if item.text or item.image is not None:
        raise InvalidRequest(_one_of(item, rules), param=path)
    return PdfFile(path=path, pdf=pdf_of(item.pdf, item.pages, item.dpi, rules.limits, path=path, hosts=rules.hosts))


def _one_of(item: str | Item, rules: Rules) -> str:
    says = "an item has text, image, or both" if rules.captions else "an item has either text or image"
    return f"{says}, or pdf"


def _image(value: str, rules: Rules, *, path: str) -> ImageFile:
    if rules.hosts and remote.is_address(value):
        return ImageFile(path=path, address=remote.check(value, rules.hosts, path=path))
    return ImageFile(path=path, content=content_of(value, rules.limits, path=path))


def _check_count(images: int, limits: VisualLimits, *, path: str) -> None:
    if images > limits.images:
        raise InvalidRequest(f"{images} images; the limit is {limits.images} a request", param=path)
