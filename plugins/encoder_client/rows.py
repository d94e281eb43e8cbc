"""The methods of ``sentence_transformers.MultiVectorEncoder`` as requests. Pure: each plans a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from encoder_client import progress
from encoder_client.arrays import Array, rows_of
from encoder_client.context import Context, refuse
from encoder_client.documents import Document, Pdf, documents_of, is_image, is_one, items
from encoder_client.embeddings import NO_DEVICE, NO_TORCH, Side
from encoder_client.errors import ArgumentError
from encoder_client.server import Server
from encoder_client.server import json_of as json_of_answer
from encoder_client.work import Answer, Batch, Work, positive

# a request with fewer texts, or documents, may stay below the limits that stand behind these
_TEXTS = ("data.texts", "data.inputs")
_DOCUMENTS = ("data.documents",)
_PROMPT = "the server puts a prompt of the checkpoint before each text; leave it out"
_EPSILON = np.float32(1e-12)


class EncodeRows:
    """Plans ``encode_query`` or ``encode_document``."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.__name__ = f"encode_{side}"
        self.__doc__ = type(self).__call__.__doc__

    def __call__(
        self,
        context: Context,
        inputs: Document | Sequence[Document],
        prompt_name: str | None = None,
        prompt: None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["token_embeddings"] = "token_embeddings",
        convert_to_numpy: Literal[True] = True,
        device: None = None,
        normalize_embeddings: bool = False,
        pool: None = None,
        chunk_size: None = None,
        token_pooling: None = None,
        *,
        pool_factor: float | None = None,
    ) -> Work[Any]:
        """Return the rows of each text or image, as the method of the same name of ``MultiVectorEncoder`` does.

        Args:
            context: The server.
            inputs: One text, or several. Documents of visual plugins are also images: a ``pathlib.Path`` or the bytes of a file, an image of
                Pillow, an address as an object such as ``httpx.URL``, or ``{"image": ..., "text": ...}``, whose image may be an address as
                a ``str``, too; and ``Pdf``. A path or an address that is a ``str`` by itself is a text.
            prompt_name: A prompt of the checkpoint, put before each text; None takes that of this side. Visual plugins have none by name.
            prompt: Only None.
            batch_size: Texts of one request; fewer where the server's limits require it.
            show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.
            output_value: Only ``token_embeddings``.
            convert_to_numpy: Only True, which the library's default is not: there is no torch.
            device: Only None: the server decides.
            normalize_embeddings: Whether each row gets length 1, where the checkpoint's modules do not do it.
            pool: Only None: the server decides.
            chunk_size: Only None: the server decides.
            token_pooling: Only None: ``pool_factor`` does what ``HierarchicalTokenPooling`` does.
            pool_factor: Documents only, 1 to 1024: about 1 / ``pool_factor`` of the rows are returned, each the mean of alike ones.

        Returns:
            A list with `[rows, dimensions]` float32 for each text or image, and a list of such arrays, one for each page, for a ``Pdf``; what
            stands for one input alone where there is one. Arrays of one request share memory.

        Raises:
            ArgumentError: An argument cannot be honoured; ``param`` is its name.
            InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``inputs``.
            EncoderClientError: No answer; see ``encoder_client.errors``.
        """
        context.server.require_kind("pool_factor", kind="the methods of MultiVectorEncoder")
        refuse(_PROMPT, prompt=prompt)
        if prompt_name is not None:
            context.server.require("prompt_name", argument="prompt_name")
        refuse(NO_TORCH, convert_to_numpy=not convert_to_numpy)
        refuse(NO_DEVICE, device=device, pool=pool, chunk_size=chunk_size)
        refuse("the server merges rows; use pool_factor", token_pooling=token_pooling)
        if output_value != "token_embeddings":
            raise ArgumentError("the server answers with token_embeddings alone", param="output_value")
        if normalize_embeddings and pool_factor is not None:
            raise ArgumentError("the server merges rows before they could get length 1", param="normalize_embeddings")
        single = is_one(inputs)
        server, listed = context.server, [inputs] if single else inputs
        documents = documents_of(listed, server, param="inputs")
        if self._side == "query":
            _check_queries(documents)
        common = {
            "encoding": "bytes",
            "input_type": self._side,
            "prompt_name": prompt_name,
            "pool_factor": pool_factor,
        }

        def decode(answer: Answer, batch: Batch) -> list[tuple[int, Array]]:
            found = rows_of(answer.content, answer.headers)
            if len(found) != len(batch.items) and not batch.items[0].own:
                raise ValueError(f"rows of {len(found)} texts for {len(batch.items)} texts")
            # those of a PDF are all of its only item
            places = [batch.place] * len(found) if batch.items[0].own else [item.place for item in batch.items]
            arrays = map(_unit, found) if normalize_embeddings else found
            return list(zip(places, arrays, strict=True))

        def combine(parts: list[list[tuple[int, Array]]]) -> Any:
            together: list[Any] = [[] for _ in documents]
            for place, rows in (pair for part in parts for pair in part):
                if isinstance(documents[place], Pdf):
                    together[place].append(rows)
                else:
                    together[place] = rows
            return together[0] if single else together

        field = "inputs" if any(map(is_image, documents)) else "texts"
        batches = context.batches(
            items(documents, server, field, param="inputs"),
            common,
            batch_size=batch_size,
            limits=("texts", "images") if field == "inputs" else ("texts",),
            divisible=_TEXTS,
        )
        shown = progress.wanted(show_progress_bar)
        return Work(
            batches=iter(batches),
            total=_items_of(documents, server),
            decode=decode,
            combine=combine,
            progress=shown,
            reads_files=_reads_files(documents),
        )


def get_embedding_dimension(context: Context) -> Work[int]:
    """Return the length of the rows that ``encode_document`` returns, for which it has some computed."""
    found = encode_document(context, "a", show_progress_bar=False)

    def combine(parts: list[Any]) -> int:
        width: int = found.combine(parts).shape[1]
        return width

    return Work(batches=found.batches, total=1, decode=found.decode, combine=combine)


def rank(
    context: Context,
    query: str,
    documents: Sequence[Document],
    top_k: int | None = None,
    return_documents: bool = False,
    prompt_name: None = None,
    prompt: None = None,
    batch_size: int = 128,
    show_progress_bar: bool | None = None,
    device: None = None,
    pool: None = None,
    chunk_size: None = None,
) -> Work[list[dict[str, Any]]]:
    """Return documents by how well they match a query, the best first, in the shape of ``CrossEncoder.rank``.

    The server computes the score, ``MultiVectorEncoder.similarity`` of query and document: no rows are sent.

    Args:
        context: The server; plugins of one vector per text rank by the cosine.
        query: The query.
        documents: The documents: texts, images and ``Pdf`` as ``encode_document`` takes them. Each page of a PDF is ranked by itself.
        top_k: Documents, or pages, to return; None returns all.
        return_documents: Whether each result repeats its document.
        prompt_name: Only None: prompts are the checkpoint's for each side.
        prompt: Only None.
        batch_size: Documents of one request; fewer where the server's limits require it.
        show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.
        device: Only None: the server decides.
        pool: Only None: the server decides.
        chunk_size: Only None: the server decides.

    Returns:
        A dictionary for each document: ``corpus_id``, its position in ``documents``; ``score``; for a page of a PDF ``page``, its number; and
        where documents are returned ``text``, or ``image`` or ``pdf`` with what was passed. Of equal scores the first document comes first.

    Raises:
        ArgumentError: An argument cannot be honoured; ``param`` is its name.
        InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``documents``.
        EncoderClientError: No answer; see ``encoder_client.errors``.
    """
    context.server.require_kind("documents", kind="requests for scores")
    refuse(_PROMPT, prompt_name=prompt_name, prompt=prompt)
    refuse(NO_DEVICE, device=device, pool=pool, chunk_size=chunk_size)
    if not isinstance(query, str):
        raise ArgumentError(f"it is {type(query).__name__}, not a text", param="query")
    listed = documents_of(documents, context.server, param="documents")
    most = None if top_k is None else positive(top_k, param="top_k")

    def decode(answer: Answer, batch: Batch) -> list[tuple[int, int | None, float]]:
        (found,) = json_of_answer(answer.content)["data"]["results"]
        indices = found["indices"]
        pages = found.get("pages", [None] * len(indices))
        triples = zip(indices, pages, found["scores"], strict=True)
        return [(batch.items[index].place, page, score) for index, page, score in triples]

    def combine(parts: list[list[tuple[int, int | None, float]]]) -> list[dict[str, Any]]:
        # stable: parts are in the order of the documents, and so are equal scores of one part
        ranked = sorted((triple for part in parts for triple in part), key=lambda triple: -triple[2])[:most]
        results: list[dict[str, Any]] = []
        for place, page, score in ranked:
            result: dict[str, Any] = {"corpus_id": place, "score": score}
            if page is not None:
                result["page"] = page
            if return_documents:
                result[_kind(listed[place])] = listed[place]
            results.append(result)
        return results

    common = {"query": query, "top_k": most}
    batches = context.batches(
        items(listed, context.server, "documents", param="documents", among=True),
        common,
        batch_size=batch_size,
        limits=("documents", "images") if any(map(is_image, listed)) else ("documents",),
        divisible=_DOCUMENTS,
    )
    shown = progress.wanted(show_progress_bar)
    return Work(
        batches=iter(batches),
        total=_items_of(listed, context.server),
        decode=decode,
        combine=combine,
        progress=shown,
        reads_files=_reads_files(listed),
    )


def _kind(document: Document) -> str:
    return "pdf" if isinstance(document, Pdf) else "image" if is_image(document) else "text"


def _items_of(documents: Sequence[Document], server: Server) -> int:
    """Return the number of items that documents are."""
    return sum(len(each.parts(server)) if isinstance(each, Pdf) else 1 for each in documents)


def _check_queries(inputs: Sequence[Document]) -> None:
    for place, each in enumerate(inputs):
        if not isinstance(each, str):
            raise ArgumentError("queries are texts; images and pages are documents", param=f"inputs[{place}]")


def _reads_files(documents: Sequence[Document]) -> bool:
    return any(isinstance(each, Pdf) or is_image(each) for each in documents)


def _unit(rows: Array) -> Array:
    lengths = np.sqrt(np.einsum("rd,rd->r", rows, rows))[:, None]
    found: Array = rows / np.maximum(lengths, _EPSILON)
    return found


encode_query = EncodeRows("query")
encode_document = EncodeRows("document")
