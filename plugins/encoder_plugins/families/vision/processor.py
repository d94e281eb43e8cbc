"""Requests to visual retrievers: texts and images to rows, or to scores.

``parse`` leaves images and PDFs as the files, or the addresses, that they came as: ``run`` fetches what is not there yet, and renders, decodes
and scales the pixels, in a thread however small the file is; they are held from then on only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import rerank
from encoder_plugins.families.retrieval.processor import MultiVectorProcessor, Parsed
from encoder_plugins.families.retrieval.request import Wanted
from encoder_plugins.families.retrieval.scoring import Origin, Scoring, Texts, list_of
from encoder_plugins.families.retrieval.tokens import TokenisedText
from encoder_plugins.families.vision import request
from encoder_plugins.families.vision.config import read_visual
from encoder_plugins.families.vision.pages import Pages
from encoder_plugins.families.vision.pixels import Pixels
from encoder_plugins.families.vision.request import (
    DATA,
    INPUTS,
    VisualLimits,
    VisualRequest,
    VisualRerankRequest,
    VisualRerankResponse,
    VisualRowsAnswer,
    VisualScoresAnswer,
    VisualTexts,
    check_documents,
)
from encoder_plugins.families.vision.tokens import VisualText, VisualTokenizer
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.pdf import Pdf, PdfRenderer, with_content
from encoder_plugins.inputs.remote import RemoteFiles
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Engine, Response, Schema, ServingContext

# of one image to decode and scale: never inline, since a file of 2 KB can have millions of pixels
MICROSECONDS_PER_IMAGE = 20_000
# of one PDF to render: never inline
MICROSECONDS_PER_PDF = 1_000_000


@dataclass(frozen=True, slots=True)
class EncodedImage(TokenisedText):
    """An image whose pixels are still to be decoded.

    Attributes:
        content: Its file; empty while it is still to be fetched.
        path: The field that it came in.
        address: Where it is fetched; None where the request has the file.
    """

    content: bytes = b""
    path: str = ""
    address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPdf(TokenisedText):
    """Pages that are still to be rendered; none of its tokens is read.

    Attributes:
        pdf: Its file, or its address, and which pages.
        path: The path of the object that has its fields.
    """

    pdf: Pdf
    path: str


@dataclass(frozen=True, slots=True)
class Page(TokenisedText):
    """A page with its pixels.

    Attributes:
        page: Its number in the PDF, from 1.
    """

    page: int = 0


class VisualProcessor(MultiVectorProcessor):
    """Serves one checkpoint of one row per token of a text, or per patch of an image."""

    # the backbone is vLLM's own, and knows no token marks
    packs_texts = False
    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[VisualRequest], VisualRowsAnswer, VisualScoresAnswer, binary=True),
        "rerank": Schema(VisualRerankRequest, VisualRerankResponse),
        "score": rerank.SCHEMAS["score"],
    }

    def __init__(self, context: ServingContext) -> None:
        self._visual = read_visual(context.model)
        super().__init__(context)
        self._captions = self._visual.captions is not None
        self.limits: VisualLimits = limits.typed(VisualLimits, context.limits)
        self._pdfs = PdfRenderer(self.limits)
        self._pixels = Pixels(self.limits, self._visual.bounds, self.limits.image_cache_bytes)
        self._pages = Pages(self._pdfs, self._pixels, most=self.limits.pdf_pages)
        self._rules = request.Rules(
            limits=self.limits,
            captions=self._captions,
            hosts=context.media_hosts,
            most_tokens=self._visual.most_tokens,
        )
        self._remote_images = RemoteFiles(context.media_hosts, remote.images(self.limits))
        self._remote_pdfs = RemoteFiles(context.media_hosts, remote.pdfs(self.limits))

    _tokenizer: VisualTokenizer

    def _build_tokenizer(self, model: Path) -> VisualTokenizer:
        return VisualTokenizer(model, self._config, self._visual)

    def _check(self, data: VisualRequest) -> tuple[Texts, Wanted] | Scoring:
        return request.check(data, self._rules)

    def _check_rerank(self, data: VisualRerankRequest) -> Scoring:
        return request.check_rerank(data, self._rules)

    def _tokenised(self, found: Texts) -> list[TokenisedText]:
        texts = super()._tokenised(found)
        images, pdfs = (found.images, found.pdfs) if isinstance(found, VisualTexts) else ({}, {})
        for position, text in enumerate(texts):
            path = found.where(position)
            if (file := pdfs.get(position)) is not None:
                ids = list(self._visual.image_prompt)
                texts[position] = EncodedPdf(ids, len(ids), None, pdf=file.pdf, path=file.path)
                continue
            if (image := images.get(position)) is not None:
                ids = list(self._visual.image_prompt)
                if image.text is not None:
                    text = self._tokenizer.captioned(image.text)
                    path, ids = f"{path}.text", text.ids
                texts[position] = EncodedImage(
                    ids, len(ids), None, content=image.content, path=image.path, address=image.address
                )
            if isinstance(text, VisualText) and text.reserved is not None:
                raise InvalidRequest(
                    f"the text contains {text.reserved}, a token of the model's own: it would stand for an image or a turn",
                    param=path,
                )
        return texts

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Fetch the files that are addresses, render the pages, decode the images, and answer with rows in their order, or with scores.

        Raises:
            InvalidRequest: A file cannot be fetched, a page rendered or an image decoded, or it has more tokens or rows than are answered, or
                there are more documents, with their pages, than are scored.
            Overloaded: Too many requests wait for the pages of their PDFs.
        """
        pdf = next((text for text in request.texts if isinstance(text, EncodedPdf)), None)
        if pdf is None:
            request = await self._fetched(request)
        else:
            # before anything is fetched, which would be for nothing where there is no slot
            with self._pdfs.slot(path=pdf.path):
                request = await self._fetched(request)
                request = await engine.compute(
                    self._rendered, request, size=MICROSECONDS_PER_PDF, threads=self._pdfs.threads
                )
        images = sum(isinstance(text, EncodedImage) for text in request.texts)
        if images:
            decoded = await engine.compute(self._decoded, request, size=images * MICROSECONDS_PER_IMAGE)
            request = replace(request, texts=decoded)
        return await super().run(request, engine)

    async def _fetched(self, request: Parsed) -> Parsed:
        """Return a request whose images and PDFs are all there as files."""
        images = {
            text.path: text.address
            for text in request.texts
            if isinstance(text, EncodedImage) and text.address is not None
        }
        pdfs = {
            f"{text.path}.pdf": text.pdf.address
            for text in request.texts
            if isinstance(text, EncodedPdf) and text.pdf.address is not None
        }
        files = await self._remote_images.fetch(images) if images else {}
        if pdfs:
            files |= await self._remote_pdfs.fetch(pdfs, before=sum(map(len, files.values())))
        if not files:
            return request
        texts = list(request.texts)
        for position, text in enumerate(texts):
            if isinstance(text, EncodedImage) and text.path in images:
                texts[position] = replace(text, content=files[text.path])
            elif isinstance(text, EncodedPdf) and (field := f"{text.path}.pdf") in pdfs:
                texts[position] = replace(text, pdf=with_content(text.pdf, files[field], path=text.path))
        return replace(request, texts=texts)

    def _decoded(self, request: Parsed) -> list[TokenisedText]:
        """Return the texts of a request, each image with its pixels."""
        texts = []
        for text in request.texts:
            if isinstance(text, EncodedImage):
                image, tokens = self._pixels.of(text.content, path=text.path)
                ids = self._cut(text.ids, tokens, text.path)
                decoded = TokenisedText(ids, len(ids), None, image=image, image_tokens=tokens)
                self._check_document(decoded, request, text.path)
                texts.append(decoded)
            else:
                texts.append(text)
        return texts

    def _rendered(self, request: Parsed) -> Parsed:
        """Return a request with the pages of each PDF in its place, with their pixels."""
        pdfs = {text.path: text for text in request.texts if isinstance(text, EncodedPdf)}
        pages: dict[str, dict[int, Page]] = {path: {} for path in pdfs}
        with closing(self._pages.of({path: text.pdf for path, text in pdfs.items()})) as found_pages:
            for path, number, image, tokens in found_pages:
                field = f"{path}.pdf"
                ids = self._cut(pdfs[path].ids, tokens, field)
                page = Page(ids, len(ids), None, image=image, image_tokens=tokens, page=number)
                self._check_document(page, request, field)
                pages[path][number] = page
        texts: list[TokenisedText] = []
        origins: list[Origin] = []
        for position, text in enumerate(request.texts):
            found: list[TokenisedText] = [text]
            if isinstance(text, EncodedPdf):
                own = pages[text.path]
                found = [own[number] for number in text.pdf.pages or sorted(own)]
            texts += found
            origins += [Origin(position, each.page if isinstance(each, Page) else None) for each in found]
        if request.scoring is None or request.queries is None:
            if all(path == DATA for path in pdfs):
                return replace(request, texts=texts)
            check_documents(len(texts), self.limits, path=INPUTS)
            return replace(request, texts=texts, origins=origins)
        # how many pages a PDF has is not known before
        check_documents(len(texts), self.limits, path=list_of(request.scoring.documents))
        self._check_scored(request.scoring, request.queries, len(texts))
        return replace(request, texts=texts, scoring=replace(request.scoring, origins=origins))

    def _cut(self, ids: list[int], tokens: int, path: str) -> list[int]:
        """Return what the model reads of an image's prompt: the published processor counts the image twice, and cuts what is behind.

        Args:
            ids: The prompt, with one token for all of the image.
            tokens: Those of the image.
            path: The field that it came in.

        Raises:
            InvalidRequest: A part of the image would be cut.
        """
        if (most := self._visual.most_tokens) is None:
            return ids
        before = ids.index(self._visual.image_token)
        if before + 2 * tokens > most:
            raise InvalidRequest(
                f"the image has {tokens} tokens; this model takes {(most - before) // 2} at most", param=path
            )
        # one token of the prompt becomes those of the image
        return ids[: most - 2 * tokens + 1]

    def _check_document(self, document: TokenisedText, request: Parsed, path: str) -> None:
        self._check_length(document, path)
        if request.wanted.pool_factor is not None:
            self._check_pooling([document], path)

    def _numbers(self, request: Parsed) -> Mapping[str, Sequence[int | None]]:
        if request.origins is not None:
            return {
                "indices": [origin.document for origin in request.origins],
                "pages": [origin.page for origin in request.origins],
            }
        pages = [text.page for text in request.texts if isinstance(text, Page)]
        return {"pages": pages} if pages else {}
