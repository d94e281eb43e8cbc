"""The server's answer to a text in the shape that ``gliner2.GLiNER2`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Extracted: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the shape of an answer depends on.

    Attributes:
        confidence: Whether values have their probabilities.
        spans: Whether values have their places.
        long: Whether the text was read in chunks: the library then keeps equal texts from different places, and has relations
            as dictionaries.
    """

    confidence: bool
    spans: bool
    long: bool


def extracted(result: Mapping[str, Any], schema: Mapping[str, Any], shape: Shape) -> Extracted:
    """Return what the library returns for one text.

    Args:
        result: One of the answer's ``results``.
        schema: What was sent as ``schema``.
        shape: The caller's options.
    """
    found: Extracted = {}
    given = schema.get("structures") or {}
    for name in given:
        found[name] = [
            {field: _values(value, shape) for field, value in record.items()} for record in result["structures"][name]
        ]
    if schema.get("entities"):
        single = _single(schema["entities"])
        found["entities"] = {
            name: next(iter(_values(values, shape)), None) if name in single else _values(values, shape)
            for name, values in result["entities"].items()
        }
    for task in schema.get("classifications") or ():
        labels = [_label(label, shape) for label in result["classifications"][task["task"]]]
        found[task["task"]] = labels if task.get("multi_label") else labels[0]
    if result["relations"]:
        found["relation_extraction"] = {
            name: [_relation(pair, shape) for pair in pairs] for name, pairs in result["relations"].items()
        }
    return found


def _single(entities: Any) -> frozenset[str]:
    """Return the entity types of which only the best mention is answered."""
    if not isinstance(entities, Mapping):
        return frozenset()
    return frozenset(
        name for name, value in entities.items() if isinstance(value, Mapping) and value.get("dtype") == "str"
    )


def _values(found: Any, shape: Shape) -> Any:
    """Return the value of a field, or its values without repetitions."""
    if found is None or isinstance(found, Mapping):
        return None if found is None else _value(found, shape)
    if shape.long:
        return [_value(value, shape) for value in found]
    kept = {_identity(value, shape): value for value in reversed(found)}
    return [_value(value, shape) for value in found if kept[_identity(value, shape)] is value]


def _identity(value: Mapping[str, Any], shape: Shape) -> Any:
    """Return by what the library recognises a value that it already has."""
    text = value["text"].lower()
    return (text, value.get("start"), value.get("end")) if shape.spans else text


def _value(found: Mapping[str, Any], shape: Shape) -> Any:
    """Return a value as a text, or as a dictionary where it has more than that."""
    made: dict[str, Any] = {"text": found["text"]}
    if shape.confidence:
        made["confidence"] = found["score"]
    # choices have no place
    if shape.spans and "start" in found:
        made |= {"start": found["start"], "end": found["end"]}
    attributes = found.get("attributes")
    # labels keep their probabilities
    for name, labels in (attributes or {}).items():
        made[name] = [_scored(label) for label in labels] if isinstance(labels, list) else _scored(labels)
    # where there are groups, even one that has none of them
    return made if len(made) > 1 or (attributes is not None and not shape.long) else found["text"]


def _scored(label: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": label["label"], "confidence": label["score"]}


def _label(found: Mapping[str, Any], shape: Shape) -> Any:
    return _scored(found) if shape.confidence else found["label"]


def _relation(pair: Mapping[str, Mapping[str, Any]], shape: Shape) -> Any:
    head, tail = (_value(pair[end], shape) for end in ("head", "tail"))
    if shape.confidence or shape.spans or shape.long:
        return {"head": head, "tail": tail}
    return head, tail
