"""sentence-transformers and gliner themselves, for tests: these functions run in their environments, through ``encoder_checkpoints.original``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch


def similarity(name: str, left: Any, right: Any) -> Any:
    """Return what ``SentenceTransformer.similarity`` computes with the function of this name."""
    from sentence_transformers.util import SimilarityFunction

    return SimilarityFunction.to_similarity_fn(name)(left, right).numpy()


def similarity_pairwise(name: str, left: Any, right: Any) -> Any:
    """Return what ``SentenceTransformer.similarity_pairwise`` computes."""
    from sentence_transformers.util import SimilarityFunction

    return SimilarityFunction.to_similarity_pairwise_fn(name)(left, right).numpy()


def maxsim(name: str, queries: Sequence[Any], documents: Sequence[Any]) -> Any:
    """Return what ``MultiVectorEncoder.similarity`` computes."""
    return similarity(name, _tensors(queries), _tensors(documents))


def maxsim_pairwise(name: str, queries: Sequence[Any], documents: Sequence[Any]) -> Any:
    """Return what ``MultiVectorEncoder.similarity_pairwise`` computes."""
    return similarity_pairwise(name, _tensors(queries), _tensors(documents))


def _tensors(arrays: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@cache
def _model(kind: str, folder: str) -> Any:
    """Load a checkpoint once, in float32, by the class of this name."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if kind == "GLiNER":
        from gliner import GLiNER

        return GLiNER.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    import sentence_transformers

    kinds = {"dtype": torch.float32}
    return getattr(sentence_transformers, kind)(folder, device="cpu", local_files_only=True, model_kwargs=kinds)


def called(kind: str, folder: str, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a method of a library's class returns."""
    return getattr(_model(kind, folder), method)(*arguments, **options)


def encoded_labels(folder: str, labels: Sequence[str]) -> Any:
    """Return what ``encode_labels`` of a bi-encoder returns."""
    model = _model("GLiNER", folder)
    # what it pads each label to: a tokenizer that states no limit has one of 10^30
    model.data_processor.labels_tokenizer.model_max_length = 64
    return model.encode_labels(list(labels)).numpy()


def with_embeds(folder: str, texts: Sequence[str], vectors: Any, labels: Any, **options: Any) -> Any:
    """Return what ``batch_predict_with_embeds`` of a bi-encoder returns, one text at a time."""
    model, given = _model("GLiNER", folder), torch.from_numpy(vectors)
    return [model.batch_predict_with_embeds([text], given, labels, **options)[0] for text in texts]


def merged(folder: str, texts: Sequence[str], factor: float) -> Any:
    """Return the rows of documents that ``HierarchicalTokenPooling`` has merged."""
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    pooling = HierarchicalTokenPooling(pool_factor=factor)
    model = _model("MultiVectorEncoder", folder)
    return model.encode_document(list(texts), convert_to_numpy=True, token_pooling=pooling)


def ranked(folder: str, query: str, documents: Sequence[str]) -> Any:
    """Return the scores `[documents]` of a query by ``MultiVectorEncoder.similarity``."""
    model = _model("MultiVectorEncoder", folder)
    return model.similarity(model.encode_query([query]), model.encode_document(list(documents)))[0].numpy()
