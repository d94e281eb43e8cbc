"""gliner2 itself, for tests: these functions run in its environment, through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Step = tuple[str, Sequence[Any], dict[str, Any]]
"""A method of a schema, with its arguments."""


def read(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the library understands of a dictionary: its own form of it."""
    from gliner2.inference.schema import Schema

    found: dict[str, Any] = Schema.from_dict(data).to_dict()
    return found


def built(steps: Sequence[Step]) -> dict[str, Any]:
    """Return what the library builds by calling the methods, each of what the one before returned."""
    from gliner2.inference.schema import AttributeGroup, Schema

    found: Any = Schema()
    for name, arguments, options in steps:
        if name == "entity_attributes":
            arguments = [{group: AttributeGroup(**values) for group, values in arguments[0].items()}]
        found = getattr(found, name)(*arguments, **options)
    result: dict[str, Any] = found.to_dict()
    return result


def sections(steps: Sequence[Step]) -> dict[str, list[str]]:
    """Return the names of structures and relations that the library has the model read, as often as it does."""
    from gliner2.inference.schema import Schema

    found: Any = Schema()
    for name, arguments, options in steps:
        found = getattr(found, name)(*arguments, **options)
    made = found.build()
    return {section: [name for one in made[section] for name in one] for section in ("json_structures", "relations")}


def parsed(kind: str, given: Any) -> dict[str, Any]:
    """Return the schema of ``extract_json`` or ``classify_text``."""
    from gliner2.inference.runtime import ExtractorRuntimeMixin

    # its methods read nothing of the model
    mixin: Any = ExtractorRuntimeMixin()
    schema = mixin._json_schema(given) if kind == "records" else mixin._classification_schema(given)
    found: dict[str, Any] = schema.to_dict()
    return found
