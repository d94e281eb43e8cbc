"""The methods of ``sentence_transformers.MultiVectorEncoder`` as requests. Pure: each plans a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from encoder_client import progress
from encoder_client.arrays import Array, rows_of
from encoder_client.context import Context, refuse
from encoder_client.embeddings import NO_DEVICE, NO_TORCH, Side, text_items
from encoder_client.errors import ArgumentError
from encoder_client.server import json_of as json_of_answer
from encoder_client.work import Answer, Batch, Work, positive, texts_of

# a request with fewer texts, or documents, may stay below the limits that stand behind these
_TEXTS = ("data.texts",)
_DOCUMENTS = ("data.documents",)
_PROMPT = "the server puts the checkpoint's own prompt and marker before each text; leave it out"
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
        inputs: str | Sequence[str],
        prompt_name: None = None,
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
        """Return the rows of each text, as the method of the same name of ``MultiVectorEncoder`` does.

        Args:
            context: The server.
            inputs: One text, or several.
            prompt_name: Only None: the prompt is the checkpoint's for this side.
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
            pool_factor: Documents only, 1 to 64: about 1 / ``pool_factor`` of the rows are returned, each the mean of alike ones.

        Returns:
            A list with `[rows, dimensions]` float32 for each text; the array alone for one text. Arrays of one request share memory.

        Raises:
            ArgumentError: An argument cannot be honoured; ``param`` is its name.
            InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``inputs``.
            EncoderClientError: No answer; see ``encoder_client.errors``.
        """
        context.server.require_kind("pool_factor", kind="the methods of MultiVectorEncoder")
        refuse(_PROMPT, prompt_name=prompt_name, prompt=prompt)
        refuse(NO_TORCH, convert_to_numpy=not convert_to_numpy)
        refuse(NO_DEVICE, device=device, pool=pool, chunk_size=chunk_size)
        refuse("the server merges rows; use pool_factor", token_pooling=token_pooling)
        if output_value != "token_embeddings":
            raise ArgumentError("the server answers with token_embeddings alone", param="output_value")
        if normalize_embeddings and pool_factor is not None:
            raise ArgumentError("the server merges rows before they could get length 1", param="normalize_embeddings")
        single = isinstance(inputs, str)
        texts = [inputs] if isinstance(inputs, str) else texts_of(inputs, param="inputs")
        common = {"encoding": "bytes", "input_type": self._side, "pool_factor": pool_factor}

        def decode(answer: Answer, batch: Batch) -> list[Array]:
            found = rows_of(answer.content, answer.headers)
            if len(found) != len(batch.items):
                raise ValueError(f"rows of {len(found)} texts for {len(batch.items)} texts")
            return [_unit(rows) for rows in found] if normalize_embeddings else found

        def combine(parts: list[list[Array]]) -> Any:
            together = [rows for part in parts for rows in part]
            return together[0] if single else together

        batches = context.batches(text_items(texts), common, batch_size=batch_size, divisible=_TEXTS)
        shown = progress.wanted(show_progress_bar)
        return Work(batches=iter(batches), total=len(texts), decode=decode, combine=combine, progress=shown)


def rank(
    context: Context,
    query: str,
    documents: Sequence[str],
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
        documents: The documents.
        top_k: Documents to return; None returns all.
        return_documents: Whether each result repeats its document.
        prompt_name: Only None: prompts are the checkpoint's for each side.
        prompt: Only None.
        batch_size: Documents of one request; fewer where the server's limits require it.
        show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.
        device: Only None: the server decides.
        pool: Only None: the server decides.
        chunk_size: Only None: the server decides.

    Returns:
        A dictionary for each document: ``corpus_id``, its position in ``documents``; ``score``; and ``text`` where documents are
        returned. Of equal scores the first document comes first.

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
    texts = texts_of(documents, param="documents")
    most = None if top_k is None else positive(top_k, param="top_k")

    def decode(answer: Answer, batch: Batch) -> list[tuple[int, float]]:
        (found,) = json_of_answer(answer.content)["data"]["results"]
        pairs = zip(found["indices"], found["scores"], strict=True)
        return [(batch.items[index].place, score) for index, score in pairs]

    def combine(parts: list[list[tuple[int, float]]]) -> list[dict[str, Any]]:
        # stable: parts are in the order of the documents, and so are equal scores of one part
        ranked = sorted((pair for part in parts for pair in part), key=lambda pair: -pair[1])[:most]
        results: list[dict[str, Any]] = [{"corpus_id": place, "score": score} for place, score in ranked]
        if return_documents:
            for result in results:
                result["text"] = texts[result["corpus_id"]]
        return results

    common = {"query": query, "top_k": most}
    batches = context.batches(
        text_items(texts, "documents"), common, batch_size=batch_size, limits=("documents",), divisible=_DOCUMENTS
    )
    shown = progress.wanted(show_progress_bar)
    return Work(batches=iter(batches), total=len(texts), decode=decode, combine=combine, progress=shown)


def _unit(rows: Array) -> Array:
    lengths = np.sqrt(np.einsum("rd,rd->r", rows, rows))[:, None]
    found: Array = rows / np.maximum(lengths, _EPSILON)
    return found


encode_query = EncodeRows("query")
encode_document = EncodeRows("document")
