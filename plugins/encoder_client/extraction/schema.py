"""What to extract, built step by step as with ``gliner2.Schema``, and as the server gets it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, Self, TypeAlias

from encoder_client.errors import ArgumentError

EntityTypes: TypeAlias = str | Sequence[str] | Mapping[str, str | Mapping[str, Any]]
RelationTypes: TypeAlias = str | Sequence[str] | Mapping[str, str | Mapping[str, Any]]
SchemaDict: TypeAlias = Mapping[str, Any]

_FLAGS = ("IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE", "ASCII")


@dataclass(frozen=True, slots=True)
class RegexValidator:
    """A regular expression that values must match; the server applies it before it compares overlapping values.

    Attributes:
        pattern: In Python's syntax; a compiled one has its own flags.
        mode: Whether the whole value must match, or a part of it: ``full`` or ``partial``.
        exclude: Whether values that match are left out, instead of those that do not.
        flags: Those of ``re``: IGNORECASE, MULTILINE, DOTALL, VERBOSE, ASCII.
    """

    pattern: str | re.Pattern[str]
    mode: Literal["full", "partial"] = "full"
    exclude: bool = False
    flags: int = re.IGNORECASE


@dataclass(frozen=True, slots=True)
class AttributeGroup:
    """Labels of which each entity gets one, or some.

    Attributes:
        labels: One or more.
        multi_label: Whether an entity gets every label whose probability is at least ``threshold``.
        threshold: From 0 to 1.
        applies_to: The entity types that have it; None for all.
        qualify_labels: Whether the model reads ``group: label``.
    """

    labels: Sequence[str]
    multi_label: bool = False
    threshold: float = 0.5
    applies_to: Sequence[str] | None = None
    qualify_labels: bool = False


class Schema:
    """What to extract. Each method adds something and returns what can be added to; the server checks names and numbers."""

    def __init__(self) -> None:
        self._data: dict[str, Any] = {}

    def entities(
        self,
        entity_types: EntityTypes,
        dtype: Literal["str", "list"] = "list",
        threshold: float | None = None,
        validators: Sequence[RegexValidator] | None = None,
    ) -> Self:
        """Add entity types.

        Args:
            entity_types: Names; or names with descriptions, or with ``description``, ``dtype``, ``threshold`` and ``validators``.
            dtype: ``str``: the best mention only, for types that have none of their own.
            threshold: From 0 to 1, for types that have none of their own; None for the call's.
            validators: All of them must accept a value, for types that have none of their own.

        Raises:
            ArgumentError: An argument is of another type, or a flag is not served.
        """
        added = self._data.setdefault("entities", {})
        for name, given in _settings(entity_types, "entity_types"):
            rules = _rules(given.pop("validators", validators))
            # as in the library: a description stays until there is another one
            kept = {"description": added[name]["description"]} if "description" in added.get(name, {}) else {}
            added[name] = kept | {"dtype": dtype, "threshold": threshold, "validators": rules} | given
        return self

    def entity_attributes(self, groups: Mapping[str, AttributeGroup]) -> Self:
        """Replace the groups of labels that entities get: by their names, which become keys of the entities."""
        found = {}
        for name, group in groups.items():
            # of this module, or of gliner2
            if not is_dataclass(group) or isinstance(group, type):
                raise ArgumentError(f"it is {type(group).__name__}, not an AttributeGroup", param=f"groups.{name}")
            found[name] = asdict(group)
        self._data["entity_attributes"] = found
        return self

    def classification(
        self,
        task: str,
        labels: Sequence[str] | Mapping[str, str],
        multi_label: bool = False,
        cls_threshold: float = 0.5,
        top_k: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Add a classification of the whole text.

        Args:
            task: Its name, the key of the answer.
            labels: Two or more; or labels with descriptions.
            multi_label: Whether every label with a probability of at least ``cls_threshold`` is answered, in a list; the best
                one where there is none.
            cls_threshold: From 0 to 1.
            top_k: With ``multi_label``, the number of labels at most.
            kwargs: ``class_act``, ``prompt``, ``examples``.

        Raises:
            ArgumentError: The labels are none.
        """
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise ArgumentError(f"it is {type(labels).__name__}, not labels", param="labels")
        for label, text in labels.items() if isinstance(labels, Mapping) else ():
            if not isinstance(label, str) or not isinstance(text, str):
                raise ArgumentError(f"the label {label!r} or its description is not a text", param="labels")
        more = {"multi_label": multi_label, "cls_threshold": cls_threshold, "top_k": top_k, **kwargs}
        labels = dict(labels) if isinstance(labels, Mapping) else list(labels)
        self._data.setdefault("classifications", []).append({"task": task, "labels": labels, **more})
        return self

    def relations(self, relation_types: RelationTypes, threshold: float | None = None) -> Self:
        """Add relations between two parts of the text.

        Args:
            relation_types: Names; or names with descriptions, or with ``description`` and ``threshold``.
            threshold: From 0 to 1, for relations that have none of their own; None for the call's.

        Raises:
            ArgumentError: An argument is of another type, or a relation is there already.
        """
        added = self._data.setdefault("relations", {})
        found = dict(_settings(relation_types, "relation_types"))
        if there := next((name for name in found if name in added), None):
            raise _twice("relation", there, "relation_types")
        added.update({name: {"threshold": threshold} | given for name, given in found.items()})
        return self

    def structure(
        self, name: str, *, mode: str | None = None, anchor: str | None = None, occurrence_policy: str | None = None
    ) -> StructureBuilder:
        """Add a kind of record, and return what its fields are added to. The options are those of models that are not served.

        Raises:
            ArgumentError: There is one of that name already.
        """
        if name in self._data.get("structures", {}):
            raise _twice("structure", name, "name")
        fields: list[dict[str, Any]] = []
        options = {"mode": mode, "anchor": anchor, "occurrence_policy": occurrence_policy}
        self._data.setdefault("structures", {})[name] = {"fields": fields, **options}
        return StructureBuilder(self, fields)

    def to_dict(self) -> dict[str, Any]:
        """Return what the server gets as ``data.schema``: a form that ``gliner2.Schema.from_dict`` takes, too."""
        found: dict[str, Any] = _without_none(self._data)
        return found

    @classmethod
    def from_dict(cls, data: SchemaDict) -> Self:
        """Return a schema of the form that ``to_dict`` returns."""
        found = cls()
        found._data = copy.deepcopy(dict(data))
        # methods may add to them
        for name in {"entities", "relations"} & found._data.keys():
            found._data[name] = dict(_settings(found._data[name], name))
        return found

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Return a schema of that form in JSON."""
        return cls.from_dict(json.loads(json_str))


class StructureBuilder:
    """A kind of record, to which fields are added; the methods of ``Schema`` go on with the schema."""

    def __init__(self, schema: Schema, fields: list[dict[str, Any]]) -> None:
        self._schema = schema
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._schema, name)

    def field(
        self,
        name: str,
        dtype: Literal["str", "list"] = "list",
        choices: Sequence[str] | None = None,
        description: str | None = None,
        threshold: float | None = None,
        validators: Sequence[RegexValidator] | None = None,
        cardinality: str | None = None,
        exclusive: bool = False,
    ) -> Self:
        """Add a field.

        Args:
            name: The key of the records.
            dtype: ``str``: one value or None; ``list``: all values.
            choices: The values that it can have.
            description: What it means, for the model.
            threshold: From 0 to 1; None for the call's.
            validators: All of them must accept a value that is not a choice.
            cardinality: Of models that are not served.
            exclusive: Of models that are not served.

        Raises:
            ArgumentError: The choices are one text, or a flag of a validator is not served.
        """
        if isinstance(choices, str):
            raise ArgumentError("it is one text; send a list of choices", param="choices")
        options: dict[str, Any] = {"description": description, "threshold": threshold, "cardinality": cardinality}
        options["validators"] = _rules(validators)
        found = {"name": name, "dtype": dtype, "choices": list(choices) if choices else None, **options}
        self._fields.append(found | ({"exclusive": True} if exclusive else {}))
        return self


def schema_dict(schema: Any, *, param: str) -> dict[str, Any]:
    """Return a schema as the server gets it: of this module, of gliner2, or a dictionary of the form of ``to_dict``.

    Raises:
        ArgumentError: It is none of them, has a structure or relation twice, or a flag of a validator is not served.
    """
    if isinstance(schema, Mapping):
        return dict(schema)
    if not hasattr(schema, "to_dict"):
        raise ArgumentError(f"it is {type(schema).__name__}, not a schema", param=param)
    found: dict[str, Any] = schema.to_dict()
    if not isinstance(schema, Schema | StructureBuilder):
        built: dict[str, Any] = getattr(schema, "build", dict)()
        # its dictionary has the last one alone, and the model reads both
        for kind, section in (("structure", "json_structures"), ("relation", "relations")):
            names = [name for one in built.get(section, ()) for name in one]
            if repeated := next((name for place, name in enumerate(names) if name in names[:place]), None):
                raise _twice(kind, repeated, param)
        _add_omitted(found, schema, built)
    return found


def _twice(kind: str, name: str, param: str) -> ArgumentError:
    """Return the refusal of a name that is there already: the library has the model read both, and answers with the last one alone."""
    return ArgumentError(f"the {kind} {name!r} is there already; give it another name", param=param)


def _add_omitted(found: dict[str, Any], schema: Any, built: Mapping[str, Any]) -> None:
    """Add what a schema of the library leaves out of its own dictionary: validators, and empty descriptions, which the model reads."""
    added: dict[str, dict[str, Any]] = {}
    for name, values in getattr(schema, "_entity_metadata", {}).items():
        if rules := _rules(values.get("validators")):
            added[name] = {"validators": rules}
    for name, text in built.get("entity_descriptions", {}).items():
        if text == "":
            added.setdefault(name, {})["description"] = text
    if added:
        found["entities"] = {
            name: given | added.get(name, {}) for name, given in _settings(found["entities"], "schema")
        }
    fields = getattr(schema, "_field_metadata", {})
    for parent, structure in found.get("structures", {}).items():
        for field in structure["fields"]:
            if rules := _rules(fields.get(f"{parent}.{field['name']}", {}).get("validators")):
                field["validators"] = rules


def _rules(validators: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Return validators, of this module or of gliner2, as the server gets them."""
    if not isinstance(validators or (), Iterable):
        raise ArgumentError(f"it is {type(validators).__name__}, not a list of validators", param="validators")
    made = []
    for place, rule in enumerate(validators or ()):
        if not hasattr(rule, "pattern") or not hasattr(rule, "mode"):
            raise ArgumentError(f"it is {type(rule).__name__}, not a RegexValidator", param=f"validators[{place}]")
        pattern = rule.pattern
        flags = rule.flags if isinstance(pattern, str) else pattern.flags
        names = [name for name in _FLAGS if flags & re.RegexFlag[name]]
        if flags & ~sum(re.RegexFlag[name] for name in names) & ~re.UNICODE:
            raise ArgumentError(f"of the flags of re, {', '.join(_FLAGS)} are served", param="validators")
        text = pattern if isinstance(pattern, str) else pattern.pattern
        made.append({"pattern": text, "mode": rule.mode, "exclude": rule.exclude, "flags": names})
    return made or None


def json_schema(structures: Mapping[str, Sequence[str | Mapping[str, Any]]]) -> Schema:
    """Return the schema of ``extract_json``: fields by structure, as strings such as ``name::str::[one|other]::what it means``."""
    schema = Schema()
    for name, fields in _items(structures, "structures"):
        if isinstance(fields, str | Mapping) or not isinstance(fields, Iterable):
            raise ArgumentError(f"it is {type(fields).__name__}, not a list of fields", param=f"structures.{name}")
        structure = schema.structure(name)
        for place, field in enumerate(fields):
            if isinstance(field, str):
                structure.field(**_parsed(field))
            elif not isinstance(field, Mapping):
                raise ArgumentError(f"it is {type(field).__name__}, not a field", param=f"structures.{name}[{place}]")
            else:
                # the library reads no others here
                known = ("name", "dtype", "choices", "description")
                structure.field(**{"name": ""} | {key: field[key] for key in known if key in field})
    return schema


def classification_schema(tasks: Mapping[str, Any]) -> Schema:
    """Return the schema of ``classify_text``: labels by task, or settings with ``labels`` in them."""
    schema = Schema()
    for task, given in _items(tasks, "tasks"):
        settings = dict(given) if isinstance(given, Mapping) and "labels" in given else {"labels": given}
        schema.classification(task, **settings)
    return schema


def _parsed(field: str) -> dict[str, Any]:
    name, *parts = field.split("::")
    found: dict[str, Any] = {"name": name}
    for part in parts:
        if part in ("str", "list"):
            found["dtype"] = part
        elif part.startswith("[") and part.endswith("]"):
            found["choices"] = [choice.strip() for choice in part[1:-1].split("|")]
        else:
            found["description"] = part
    return ({"dtype": "str"} if "choices" in found else {}) | found


def _settings(given: Any, param: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names with what a caller gave for each."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping | list | tuple):
        raise ArgumentError(f"it is {type(given).__name__}, not names", param=param)
    for name in given:
        if not isinstance(name, str):
            raise ArgumentError(f"{name!r} is not a name", param=param)
        value = given[name] if isinstance(given, Mapping) else None
        if value is not None and not isinstance(value, str | Mapping):
            raise ArgumentError(f"it is {type(value).__name__}, not a description or settings", param=f"{param}.{name}")
        yield name, {"description": value} if isinstance(value, str) else dict(value or {})


def _items(given: Any, param: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"it is {type(given).__name__}, not a dictionary", param=param)
    return given.items()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        # a label whose description is None must not be left out: the server refuses it by name
        return {
            name: part if name == "labels" else _without_none(part) for name, part in value.items() if part is not None
        }
    return [_without_none(part) for part in value] if isinstance(value, list) else value
