"""Classes with the methods of the libraries, whose models a server computes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack, get_args

from encoder_client import embeddings, entities, label_vectors, rows
from encoder_client import similarity as scoring
from encoder_client.async_client import AsyncClient
from encoder_client.client import Client
from encoder_client.context import Context
from encoder_client.errors import ArgumentError
from encoder_client.extraction import calls, tasks
from encoder_client.extraction.schema import Schema
from encoder_client.methods import async_method, method
from encoder_client.server import Server
from encoder_client.settings import Settings
from encoder_client.similarity import RowsName, Scores, Vectors, VectorsName
from encoder_client.work import positive

# the name that sentence-transformers had for its inputs
SENTENCES = {"sentences": "inputs"}


class Options(TypedDict, total=False):
    """How a server is reached; ``Settings`` describes each."""

    model: str | None
    lora: str | None
    api_key: str | None
    headers: Mapping[str, str]
    timeout: float
    connect_timeout: float
    ca: str | Path | ssl.SSLContext | None
    concurrency: int
    retry_seconds: float


class Model:
    """A model that a server computes. Threads may share it; ``close`` it, or use it in a ``with`` block."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        """Make a model; nothing is sent yet.

        Args:
            url: Where the server listens.
            options: As ``Settings`` describes them.

        Raises:
            ArgumentError: One of them is wrong; ``param`` is its name.
        """
        self.client = Client(Settings(url=url, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def context(self, server: Server) -> Context:
        """Return what calls are planned from."""
        return Context(server=server, settings=self.client.settings)


class AsyncModel:
    """A model that a server computes, for coroutines; ``aclose`` it, or use it in an ``async with`` block."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        """Make a model; nothing is sent yet. Arguments and errors are those of ``Model``."""
        self.client = AsyncClient(Settings(url=url, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def context(self, server: Server) -> Context:
        """Return what calls are planned from."""
        return Context(server=server, settings=self.client.settings)


class GLiNER(Model):
    """The methods of ``gliner.GLiNER``, for servers of every GLiNER plugin."""

    predict_entities = method(entities.predict_entities)
    inference = method(entities.inference)
    batch_predict_entities = method(entities.batch_predict_entities)
    encode_labels = method(label_vectors.encode_labels)
    predict_with_embeds = method(label_vectors.predict_with_embeds)
    batch_predict_with_embeds = method(label_vectors.batch_predict_with_embeds)


class AsyncGLiNER(AsyncModel):
    """``GLiNER`` whose methods are awaited."""

    predict_entities = async_method(entities.predict_entities)
    inference = async_method(entities.inference)
    encode_labels = async_method(label_vectors.encode_labels)
    predict_with_embeds = async_method(label_vectors.predict_with_embeds)
    batch_predict_with_embeds = async_method(label_vectors.batch_predict_with_embeds)


class GLiNER2(Model):
    """The methods of ``gliner2.GLiNER2``, for servers of ``deberta_gliner2``."""

    extract = method(calls.extract)
    batch_extract = method(calls.batch_extract)
    extract_long = method(calls.extract_long)
    batch_extract_long = method(calls.batch_extract_long)
    extract_entities = method(tasks.extract_entities)
    batch_extract_entities = method(tasks.batch_extract_entities)
    extract_entities_long = method(tasks.extract_entities_long)
    batch_extract_entities_long = method(tasks.batch_extract_entities_long)
    classify_text = method(tasks.classify_text)
    batch_classify_text = method(tasks.batch_classify_text)
    classify_text_long = method(tasks.classify_text_long)
    batch_classify_text_long = method(tasks.batch_classify_text_long)
    extract_json = method(tasks.extract_json)
    batch_extract_json = method(tasks.batch_extract_json)
    extract_json_long = method(tasks.extract_json_long)
    batch_extract_json_long = method(tasks.batch_extract_json_long)
    extract_relations = method(tasks.extract_relations)
    batch_extract_relations = method(tasks.batch_extract_relations)
    extract_relations_long = method(tasks.extract_relations_long)
    batch_extract_relations_long = method(tasks.batch_extract_relations_long)

    def create_schema(self) -> Schema:
        """Return a schema, to which its methods add what is to be extracted."""
        return Schema()


class AsyncGLiNER2(AsyncModel):
    """``GLiNER2`` whose methods are awaited, but for ``create_schema``."""

    extract = async_method(calls.extract)
    batch_extract = async_method(calls.batch_extract)
    extract_long = async_method(calls.extract_long)
    batch_extract_long = async_method(calls.batch_extract_long)
    extract_entities = async_method(tasks.extract_entities)
    batch_extract_entities = async_method(tasks.batch_extract_entities)
    extract_entities_long = async_method(tasks.extract_entities_long)
    batch_extract_entities_long = async_method(tasks.batch_extract_entities_long)
    classify_text = async_method(tasks.classify_text)
    batch_classify_text = async_method(tasks.batch_classify_text)
    classify_text_long = async_method(tasks.classify_text_long)
    batch_classify_text_long = async_method(tasks.batch_classify_text_long)
    extract_json = async_method(tasks.extract_json)
    batch_extract_json = async_method(tasks.batch_extract_json)
    extract_json_long = async_method(tasks.extract_json_long)
    batch_extract_json_long = async_method(tasks.batch_extract_json_long)
    extract_relations = async_method(tasks.extract_relations)
    batch_extract_relations = async_method(tasks.batch_extract_relations)
    extract_relations_long = async_method(tasks.extract_relations_long)
    batch_extract_relations_long = async_method(tasks.batch_extract_relations_long)

    def create_schema(self) -> Schema:
        """Return a schema, to which its methods add what is to be extracted."""
        return Schema()


class SimilarVectors:
    """Compares vectors on this machine: the arrays that ``encode`` returned, or others.

    Attributes:
        similarity_fn_name: The function that compares them; a server does not report the checkpoint's.
        truncate_dim: Numbers to keep of each vector where a call names none; None keeps all.
    """

    def __init__(self, similarity_fn_name: VectorsName, truncate_dim: int | None) -> None:
        if similarity_fn_name not in get_args(VectorsName):
            raise ArgumentError(f"there is no {similarity_fn_name!r}", param="similarity_fn_name")
        self.similarity_fn_name = similarity_fn_name
        self.truncate_dim = None if truncate_dim is None else positive(truncate_dim, param="truncate_dim")

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
        """Return how alike all vectors of one side and of the other are: `[n, m]` float32, where the library has a tensor."""
        return scoring.similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
        """Return how alike the vectors at the same position are: `[n]` float32, where the library has a tensor."""
        return scoring.similarity_pairwise(self.similarity_fn_name, embeddings1, embeddings2)


class SimilarRows:
    """Compares rows on this machine: the arrays that ``encode_query`` and ``encode_document`` returned, or others.

    Attributes:
        similarity_fn_name: The function that compares them; a server does not report the checkpoint's.
    """

    def __init__(self, similarity_fn_name: RowsName) -> None:
        if similarity_fn_name not in get_args(RowsName):
            raise ArgumentError(f"there is no {similarity_fn_name!r}", param="similarity_fn_name")
        self.similarity_fn_name = similarity_fn_name

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
        """Return the score of each query for each document: `[queries, documents]` float32, where the library has a tensor."""
        return scoring.maxsim(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
        """Return the score of each query for the document at its own position: `[queries]` float32."""
        return scoring.maxsim_pairwise(self.similarity_fn_name, embeddings1, embeddings2)


class SentenceTransformer(Model, SimilarVectors):
    """The methods of ``sentence_transformers.SentenceTransformer``, for servers of one vector per text."""

    def __init__(
        self,
        url: str,
        *,
        similarity_fn_name: VectorsName = "cosine",
        truncate_dim: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Make a model; nothing is sent yet.

        Args:
            url: Where the server listens.
            similarity_fn_name: See ``SimilarVectors``.
            truncate_dim: See ``SimilarVectors``.
            options: As ``Settings`` describes them.

        Raises:
            ArgumentError: One of them is wrong; ``param`` is its name.
        """
        SimilarVectors.__init__(self, similarity_fn_name, truncate_dim)
        Model.__init__(self, url, **options)

    def context(self, server: Server) -> Context:
        """Return what calls are planned from."""
        return Context(server=server, settings=self.client.settings, truncate_dim=self.truncate_dim)

    encode = method(embeddings.encode, SENTENCES)
    encode_query = method(embeddings.encode_query, SENTENCES)
    encode_document = method(embeddings.encode_document, SENTENCES)
    get_embedding_dimension = method(embeddings.get_embedding_dimension)
    get_sentence_embedding_dimension = method(embeddings.get_sentence_embedding_dimension)


class AsyncSentenceTransformer(AsyncModel, SimilarVectors):
    """``SentenceTransformer`` whose methods are awaited, but for the comparisons."""

    def __init__(
        self,
        url: str,
        *,
        similarity_fn_name: VectorsName = "cosine",
        truncate_dim: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Make a model; nothing is sent yet. Arguments and errors are those of ``SentenceTransformer``."""
        SimilarVectors.__init__(self, similarity_fn_name, truncate_dim)
        AsyncModel.__init__(self, url, **options)

    def context(self, server: Server) -> Context:
        """Return what calls are planned from."""
        return Context(server=server, settings=self.client.settings, truncate_dim=self.truncate_dim)

    encode = async_method(embeddings.encode, SENTENCES)
    encode_query = async_method(embeddings.encode_query, SENTENCES)
    encode_document = async_method(embeddings.encode_document, SENTENCES)
    get_embedding_dimension = async_method(embeddings.get_embedding_dimension)
    get_sentence_embedding_dimension = async_method(embeddings.get_sentence_embedding_dimension)


class MultiVectorEncoder(Model, SimilarRows):
    """The methods of ``sentence_transformers.MultiVectorEncoder``, for servers of one vector per token, and ``rank``."""

    def __init__(self, url: str, *, similarity_fn_name: RowsName = "maxsim", **options: Unpack[Options]) -> None:
        """Make a model; nothing is sent yet.

        Args:
            url: Where the server listens.
            similarity_fn_name: See ``SimilarRows``.
            options: As ``Settings`` describes them.

        Raises:
            ArgumentError: One of them is wrong; ``param`` is its name.
        """
        SimilarRows.__init__(self, similarity_fn_name)
        Model.__init__(self, url, **options)

    encode_query = method(rows.encode_query)
    encode_document = method(rows.encode_document)
    rank = method(rows.rank)
    get_embedding_dimension = method(rows.get_embedding_dimension)


class AsyncMultiVectorEncoder(AsyncModel, SimilarRows):
    """``MultiVectorEncoder`` whose methods are awaited, but for the comparisons."""

    def __init__(self, url: str, *, similarity_fn_name: RowsName = "maxsim", **options: Unpack[Options]) -> None:
        """Make a model; nothing is sent yet. Arguments and errors are those of ``MultiVectorEncoder``."""
        SimilarRows.__init__(self, similarity_fn_name)
        AsyncModel.__init__(self, url, **options)

    encode_query = async_method(rows.encode_query)
    encode_document = async_method(rows.encode_document)
    rank = async_method(rows.rank)
    get_embedding_dimension = async_method(rows.get_embedding_dimension)
