"""The methods of gliner's bi-encoders that keep the vectors of labels, as requests. Pure: each function plans a call."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from encoder_client import entities, progress
from encoder_client.context import Context
from encoder_client.entities import Entity, Overflow
from encoder_client.errors import ArgumentError, InvalidAnswerError
from encoder_client.server import json_of as json_of_answer
from encoder_client.work import Answer, Batch, Item, Work, first_of, json_of, texts_of

_KIND = "the methods of bi-encoders"
# a request with fewer labels may stay below the limits that stand behind it
_DIVISIBLE = ("data.labels",)


class LabelVectors(NDArray[np.float32]):
    """Vectors of labels, `[labels, width]` float32, with the artifact that computed them; so have slices and copies of them.

    Attributes:
        digest: That of the artifact. A server takes only vectors of the artifact that it serves. None where numpy made one
            array of several.
    """

    digest: str | None

    def __new__(cls, vectors: Any, digest: str) -> Self:
        """Take vectors that were stored.

        Args:
            vectors: `[labels, width]`.
            digest: What ``digest`` was when they were stored.

        Raises:
            ArgumentError: They are not numbers.
        """
        found = _numbers(vectors, "vectors").view(cls)
        found.digest = digest
        return found

    def __array_finalize__(self, source: Any) -> None:
        """Take over the digest of what this is a slice or a copy of."""
        self.digest = getattr(source, "digest", None)

    def __reduce__(self) -> Any:
        """Return what pickle stores: the digest, too."""
        return LabelVectors, (np.asarray(self), self.digest)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Return what pickle stores, by every protocol."""
        return self.__reduce__()


def encode_labels(
    context: Context, labels: Sequence[str], batch_size: int = 8, *, show_progress_bar: bool | None = False
) -> Work[LabelVectors]:
    """Return the vectors of labels, as ``encode_labels`` of gliner's bi-encoders does.

    Args:
        context: The server.
        labels: The labels, at least one.
        batch_size: Labels of one request; fewer where the server's limits require it.
        show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.

    Returns:
        `[labels, width]` float32, in the order of the labels, for ``predict_with_embeds``; ``digest`` names the artifact.

    Raises:
        ArgumentError: An argument cannot be honoured; ``param`` is its name.
        InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``labels``.
        EncoderClientError: No answer; see ``encoder_client.errors``.
    """
    context.server.require_kind("label_vectors", kind=_KIND)
    names = texts_of(labels, param="labels")
    if not names:
        raise ArgumentError("there are no labels to encode", param="labels")

    def items() -> Iterator[Item]:
        for place, name in enumerate(names):
            yield Item(values={"labels": json_of(name, param=f"labels[{place}]")}, characters=0, place=place)

    def decode(answer: Answer, batch: Batch) -> tuple[str, list[bytes]]:
        found = json_of_answer(answer.content)["data"]["label_vectors"]
        return found["digest"], [base64.b64decode(found["vectors"][names[item.place]]) for item in batch.items]

    def combine(parts: list[tuple[str, list[bytes]]]) -> LabelVectors:
        digests = {digest for digest, _ in parts}
        if len(digests) > 1:
            # vectors of two models mean nothing together
            raise InvalidAnswerError("another model was served before the end of the call; call again")
        rows = [np.frombuffer(row, "<f4") for _, part in parts for row in part]
        return LabelVectors(np.stack(rows), digests.pop())

    common = {"encode": "labels"}
    batches = context.batches(items(), common, batch_size=batch_size, limits=("labels",), divisible=_DIVISIBLE)
    shown = progress.wanted(show_progress_bar)
    return Work(batches=iter(batches), total=len(names), decode=decode, combine=combine, progress=shown)


def batch_predict_with_embeds(
    context: Context,
    texts: Sequence[str],
    labels_embeddings: NDArray[Any],
    labels: str | Sequence[str] | Mapping[str, str],
    flat_ner: bool = True,
    threshold: float = 0.5,
    multi_label: bool = False,
    batch_size: int = 8,
    packing_config: None = None,
    input_spans: Sequence[Sequence[Mapping[str, int]]] | None = None,
    return_class_probs: bool = False,
    *,
    overflow: Overflow = "truncate",
    show_progress_bar: bool | None = False,
    return_vectors: Literal[False] = False,
    return_label_vectors: Literal[False] = False,
) -> Work[list[list[Entity]]]:
    """Return the entities of each text, as ``batch_predict_with_embeds`` of gliner's bi-encoders does.

    Args:
        context: The server.
        texts: As in ``inference``.
        labels_embeddings: What ``encode_labels`` returned, or rows of it: one for each label.
        labels: The labels of all texts, in the order of the vectors.
        flat_ner: As in ``inference``, as all further arguments.
        threshold: As in ``inference``.
        multi_label: As in ``inference``.
        batch_size: As in ``inference``.
        packing_config: Only None.
        input_spans: As in ``inference``.
        return_class_probs: Only False: these servers have no such probabilities.
        overflow: As in ``inference``.
        show_progress_bar: As in ``inference``.
        return_vectors: Only False.
        return_label_vectors: Only False.

    Returns:
        As ``inference``.

    Raises:
        ArgumentError: An argument cannot be honoured; ``param`` is its name.
        InvalidRequestError: The server refused a request; ``param`` is the field, ``data.label_vectors.digest`` where the vectors are those
            of another model.
        EncoderClientError: No answer; see ``encoder_client.errors``.
    """
    context.server.require_kind("label_vectors", kind=_KIND)
    if not isinstance(labels, Mapping):
        labels = [labels] if isinstance(labels, str) else texts_of(labels, param="labels")
    sent = entities.sent_labels(labels, "labels").sent
    return entities.planned(
        context,
        texts,
        labels,
        flat_ner,
        threshold,
        multi_label,
        batch_size,
        packing_config,
        input_spans,
        return_class_probs,
        overflow=overflow,
        show_progress_bar=show_progress_bar,
        return_vectors=return_vectors,
        return_label_vectors=return_label_vectors,
        label_vectors=_sent(sent, labels_embeddings),
    )


def predict_with_embeds(
    context: Context,
    text: str,
    labels_embeddings: NDArray[Any],
    labels: str | Sequence[str] | Mapping[str, str],
    flat_ner: bool = True,
    threshold: float = 0.5,
    multi_label: bool = False,
    return_class_probs: bool = False,
    *,
    packing_config: None = None,
    input_spans: Sequence[Sequence[Mapping[str, int]]] | None = None,
    overflow: Overflow = "truncate",
    return_vectors: Literal[False] = False,
    return_label_vectors: Literal[False] = False,
) -> Work[list[Entity]]:
    """Return the entities of one text, as ``predict_with_embeds`` of gliner's bi-encoders does; see ``batch_predict_with_embeds``."""
    found = batch_predict_with_embeds(
        context,
        [text],
        labels_embeddings,
        labels,
        flat_ner,
        threshold,
        multi_label,
        packing_config=packing_config,
        input_spans=input_spans,
        return_class_probs=return_class_probs,
        overflow=overflow,
        return_vectors=return_vectors,
        return_label_vectors=return_label_vectors,
    )
    return first_of(found)


def _sent(labels: Sequence[str], vectors: Any) -> Mapping[str, Any]:
    """Return vectors as a request has them.

    Raises:
        ArgumentError: They are not one for each label, or it is unknown whose they are.
    """
    if (digest := getattr(vectors, "digest", None)) is None:
        raise ArgumentError(
            "they have no digest, by which a server knows its own vectors; send what encode_labels returned, or"
            " LabelVectors(vectors, digest)",
            param="labels_embeddings",
        )
    found = _numbers(vectors, "labels_embeddings")
    if len(found) != len(labels):
        raise ArgumentError(f"{len(found)} vectors for {len(labels)} labels", param="labels_embeddings")
    rows: dict[str, bytes] = {}
    for place, (label, row) in enumerate(zip(labels, found, strict=True)):
        if rows.setdefault(label, row.tobytes()) != row.tobytes():
            raise ArgumentError(f"the label {label!r} is there twice, with two vectors", param=f"labels[{place}]")
    written = {label: base64.b64encode(row).decode("ascii") for label, row in rows.items()}
    return {"digest": digest, "vectors": written}


def _numbers(vectors: Any, param: str) -> NDArray[np.float32]:
    """Return `[labels, width]` float32, little-endian; raises ArgumentError where it is something else."""
    try:
        found = np.asarray(vectors, "<f4")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"they are not numbers: {error}", param=param) from None
    if found.ndim != 2:
        raise ArgumentError(f"they have {found.ndim} dimensions; expected [labels, width]", param=param)
    return found
