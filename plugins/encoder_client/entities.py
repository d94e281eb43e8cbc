"""The methods of ``gliner.GLiNER`` as requests. Pure: each function plans a call."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from encoder_client import progress
from encoder_client.context import Context, refuse, require
from encoder_client.errors import ArgumentError, TruncationWarning
from encoder_client.server import json_of as json_of_answer
from encoder_client.work import Answer, Batch, Item, Work, first_of, json_of, listed

Entity: TypeAlias = dict[str, Any]
Labels: TypeAlias = str | Sequence[str] | Mapping[str, str] | Sequence[Sequence[str]] | Sequence[Mapping[str, str]]
Candidates: TypeAlias = Sequence[Sequence[Mapping[str, str] | str]]
Overflow: TypeAlias = Literal["truncate", "refuse", "chunk"]

# a request with fewer texts may stay below the limits that stand behind these
_DIVISIBLE = (
    "data.texts",
    "data.threshold",
    "data.labels_per_text",
    "data.candidates_per_text",
    "data.label_vectors.vectors",
)
_ENGINE = "the server decides how texts are computed together; leave it out"
_VECTORS = "the server does not answer vectors of entities or labels"


@dataclass(frozen=True, slots=True)
class SentLabels:
    """Labels as the server gets them, and what callers call them.

    Attributes:
        sent: The labels, or their descriptions.
        names: The caller's name by what was sent; empty where both are the same.
    """

    sent: Sequence[str]
    names: Mapping[str, str]

    def named(self, entity: Entity) -> Entity:
        """Return an entity with the caller's names."""
        if not self.names:
            return entity
        found = {**entity, "label": self.names[entity["label"]]}
        if "class_probs" in entity:
            found["class_probs"] = {self.names[label]: score for label, score in entity["class_probs"].items()}
        return found


def predict_entities(
    context: Context,
    text: str,
    labels: Labels,
    flat_ner: bool = True,
    threshold: float = 0.5,
    multi_label: bool = False,
    return_class_probs: bool = False,
    *,
    input_spans: Sequence[Sequence[Mapping[str, int]]] | None = None,
    overflow: Overflow = "truncate",
    candidates_per_text: Candidates | None = None,
    label_set: str | None = None,
    max_labels: int | None = None,
    language: str | None = None,
    packing_config: None = None,
    return_vectors: Literal[False] = False,
    return_label_vectors: Literal[False] = False,
) -> Work[list[Entity]]:
    """Return the entities of one text, as ``gliner.GLiNER.predict_entities`` does; see ``inference``.

    Returns:
        A dictionary for each entity, in the order of the text: ``start``, ``end``, ``text``, ``label``, ``score``.
    """
    found = inference(
        context,
        [text],
        labels,
        flat_ner,
        threshold,
        multi_label,
        packing_config=packing_config,
        input_spans=input_spans,
        return_class_probs=return_class_probs,
        overflow=overflow,
        candidates_per_text=candidates_per_text,
        label_set=label_set,
        max_labels=max_labels,
        language=language,
        return_vectors=return_vectors,
        return_label_vectors=return_label_vectors,
    )
    return first_of(found)


def inference(
    context: Context,
    texts: str | Sequence[str],
    labels: Labels,
    flat_ner: bool = True,
    threshold: float = 0.5,
    multi_label: bool = False,
    batch_size: int = 8,
    packing_config: None = None,
    input_spans: Sequence[Sequence[Mapping[str, int]]] | None = None,
    return_class_probs: bool = False,
    *,
    overflow: Overflow = "truncate",
    candidates_per_text: Candidates | None = None,
    label_set: str | None = None,
    max_labels: int | None = None,
    language: str | None = None,
    show_progress_bar: bool | None = False,
    return_vectors: Literal[False] = False,
    return_label_vectors: Literal[False] = False,
) -> Work[list[list[Entity]]]:
    """Return the entities of each text, as ``gliner.GLiNER.inference`` does.

    Args:
        context: The server.
        texts: One text, or several. Blank ones have no entities, and are not sent.
        labels: The labels of all texts, or a list of them for each text. A dictionary has descriptions, which the model reads, by
            the names that entities come back with.
        flat_ner: Whether entities share no words; otherwise an entity may lie within another one.
        threshold: From 0 to 1; the probability of an entity is above it.
        multi_label: Whether the same words may have several labels.
        batch_size: Texts of one request; fewer where the server's limits require it.
        packing_config: Only None: the server decides how texts are computed together.
        input_spans: For each text the only parts that can be entities, ``{"start": …, "end": …}`` in characters.
        return_class_probs: Whether each entity has ``class_probs``, the probabilities of its five best labels.
        overflow: What happens to a text with more words than the model takes. ``truncate``: the words behind the limit are left out,
            with a ``TruncationWarning``, as in the library. ``refuse``: ``InvalidRequestError``. ``chunk``: the text is read in
            overlapping parts.
        candidates_per_text: Only for ``modernbert_gliner_rerank`` and ``deberta_gliner_linker``: ``{"id": …, "label": …}`` for each text,
            instead of ``labels``, which is then an empty list; entities have an ``id``. With ``label_set`` each candidate is an id.
        label_set: Only for ``deberta_gliner_linker``: a set of labels that the model was prepared with, instead of ``labels``, which is
            then an empty list; entities have an ``id``.
        max_labels: Only for ``modernbert_gliner_rerank``: labels that are read with a text at once.
        language: Only for a model that was prepared with ``wordsSplitter: stanza``: the language that all texts are split as; otherwise
            each text's language is detected.
        show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.
        return_vectors: Only False: the server has no vectors of entities.
        return_label_vectors: Only False.

    Returns:
        For each text a list of dictionaries, in the order of the text: ``start`` and ``end`` in characters (code points, ``end``
        behind the last one), ``text``, ``label``, ``score`` (a probability), and ``class_probs`` or ``id`` where requested.

    Raises:
        ArgumentError: An argument cannot be honoured; ``param`` is its name.
        InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``texts``.
        EncoderClientError: No answer; see ``encoder_client.errors``.
    """
    return planned(
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
        candidates_per_text=candidates_per_text,
        label_set=label_set,
        max_labels=max_labels,
        language=language,
        show_progress_bar=show_progress_bar,
        return_vectors=return_vectors,
        return_label_vectors=return_label_vectors,
    )


def planned(
    context: Context,
    texts: str | Sequence[str],
    labels: Labels,
    flat_ner: bool,
    threshold: float,
    multi_label: bool,
    batch_size: int,
    packing_config: None,
    input_spans: Sequence[Sequence[Mapping[str, int]]] | None,
    return_class_probs: bool,
    *,
    overflow: Overflow,
    show_progress_bar: bool | None,
    return_vectors: bool,
    return_label_vectors: bool,
    candidates_per_text: Candidates | None = None,
    label_set: str | None = None,
    max_labels: int | None = None,
    language: str | None = None,
    label_vectors: Mapping[str, Any] | None = None,
) -> Work[list[list[Entity]]]:
    """Plan what ``inference`` describes, also with ``label_vectors`` as a request has them, which no argument of the library is."""
    context.server.require_kind("labels", kind="the methods of GLiNER")
    refuse(_ENGINE, packing_config=packing_config)
    refuse(_VECTORS, return_vectors=return_vectors, return_label_vectors=return_label_vectors)
    require(flat_ner=flat_ner, threshold=threshold, multi_label=multi_label, overflow=overflow)
    found = [texts] if isinstance(texts, str) else listed(texts, param="texts")
    if not isinstance(labels, str | Mapping):
        if not isinstance(labels, Iterable):
            raise ArgumentError(f"it is {type(labels).__name__}, not labels", param="labels")
        # read once: an iterator would be empty behind that
        labels = cast("Labels", list(labels))
    sent = [place for place, text in enumerate(found) if isinstance(text, str) and text.strip()]
    common: dict[str, Any] = {
        "flat_ner": flat_ner,
        "threshold": threshold,
        "multi_label": multi_label,
        "overflow": overflow,
    }
    if return_class_probs:
        context.server.require("return_class_probs", argument="return_class_probs")
        common["return_class_probs"] = True
    if max_labels is not None:
        context.server.require("max_labels", argument="max_labels")
        common["max_labels"] = max_labels
    if language is not None:
        context.server.require("language", argument="language")
        common["language"] = language
    if label_set is not None:
        context.server.require("label_set", argument="label_set")
        refuse("send either labels or label_set", labels=labels or None)
        common["label_set"] = label_set
    if label_vectors is not None:
        common["label_vectors"] = label_vectors
    columns: dict[str, Sequence[Any]] = {"texts": found}
    sets: Sequence[SentLabels] = [SentLabels((), {})] * len(found)
    if candidates_per_text is not None:
        context.server.require("candidates_per_text", argument="candidates_per_text")
        refuse("send either labels or candidates_per_text", labels=labels or None)
        columns["candidates_per_text"] = [
            listed(candidates, param=f"candidates_per_text[{place}]")
            for place, candidates in enumerate(_one_each(candidates_per_text, len(found), "candidates_per_text"))
        ]
    elif _is_per_text(labels):
        sets = [sent_labels(each, f"labels[{place}]") for place, each in enumerate(labels)]
        columns["labels_per_text"] = [each.sent for each in _one_each(sets, len(found), "labels")]
    elif label_set is None:
        shared = sent_labels(labels, "labels")
        sets = [shared] * len(found)
        common["labels"] = shared.sent
    if input_spans is not None:
        columns["input_spans"] = [
            [
                _span(span, f"input_spans[{place}][{index}]")
                for index, span in enumerate(listed(spans, param=f"input_spans[{place}]"))
            ]
            for place, spans in enumerate(_one_each(input_spans, len(found), "input_spans"))
        ]

    def items() -> Iterator[Item]:
        for place in sent:
            values = {name: json_of(column[place], param=f"{name}[{place}]") for name, column in columns.items()}
            yield Item(values=values, characters=len(found[place]), place=place)

    def decode(answer: Answer, batch: Batch) -> list[tuple[int, list[Entity]]]:
        results = json_of_answer(answer.content)["data"]["results"]
        parts = []
        for item, result in zip(batch.items, results, strict=True):
            if result.get("truncated"):
                message = f"texts[{item.place}] has more words than the model takes: {result['words_kept']} were read"
                warnings.warn(message, TruncationWarning, stacklevel=2)
            parts.append((item.place, [sets[item.place].named(entity) for entity in result["entities"]]))
        return parts

    def combine(parts: list[list[tuple[int, list[Entity]]]]) -> list[list[Entity]]:
        answered = dict(pair for part in parts for pair in part)
        return [answered.get(place, []) for place in range(len(found))]

    batches = context.batches(items(), common, batch_size=batch_size, limits=("texts", "prompts"), divisible=_DIVISIBLE)
    shown = progress.wanted(show_progress_bar)
    return Work(batches=iter(batches), total=len(sent), decode=decode, combine=combine, progress=shown)


def batch_predict_entities(
    context: Context,
    texts: Sequence[str],
    labels: Labels,
    flat_ner: bool = True,
    threshold: float = 0.5,
    multi_label: bool = False,
    batch_size: int = 8,
) -> Work[list[list[Entity]]]:
    """Return the entities of each text: the older name of ``inference``, deprecated by the library, too."""
    warnings.warn("batch_predict_entities is deprecated by gliner; use inference", FutureWarning, stacklevel=3)
    return inference(context, texts, labels, flat_ner, threshold, multi_label, batch_size)


def sent_labels(labels: Any, param: str) -> SentLabels:
    """Return labels as they are sent.

    Raises:
        ArgumentError: They are not labels; two labels with the same description among them.
    """
    if isinstance(labels, str):
        return SentLabels([labels], {})
    if isinstance(labels, Mapping):
        for name, description in labels.items():
            if not isinstance(name, str) or not isinstance(description, str):
                raise ArgumentError(f"the label {name!r} or its description is not a text", param=param)
        names = {description: name for name, description in labels.items()}
        if len(names) != len(labels):
            raise ArgumentError("two labels have the same description", param=param)
        return SentLabels(list(names), names)
    return SentLabels(_texts(list(labels), param), {})


def _texts(labels: list[Any], param: str) -> list[str]:
    for place, label in enumerate(labels):
        if not isinstance(label, str):
            raise ArgumentError(f"it is {type(label).__name__}, not a label", param=f"{param}[{place}]")
    return labels


def _span(span: Any, param: str) -> Mapping[str, int]:
    if not isinstance(span, Mapping) or not span.keys() >= {"start", "end"}:
        raise ArgumentError("a span is a dictionary with start and end", param=param)
    return {"start": span["start"], "end": span["end"]}


def _is_per_text(labels: Any) -> bool:
    return not isinstance(labels, str | Mapping) and any(isinstance(each, list | tuple | Mapping) for each in labels)


def _one_each(given: Any, texts: int, param: str) -> Sequence[Any]:
    found = listed(given, param=param)
    if len(found) != texts:
        raise ArgumentError(f"{len(found)} for {texts} texts; it has to have one for each", param=param)
    return found
