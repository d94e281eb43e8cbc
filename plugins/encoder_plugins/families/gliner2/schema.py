"""What to extract, checked: the tasks of a schema in the order in which gliner2 writes them into a prompt. Pure.

What the library answers under another name, reads from a wrong place, or drops without an error is refused by name. Markers of the
model in a string are found later, by ``families.gliner2.prompt``: that needs the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner2.request import (
    AttributesInput,
    ClassificationInput,
    EntityInput,
    FieldInput,
    Gliner2Limits,
    RelationInput,
    Request,
    SchemaInput,
    StructureInput,
    TaskInput,
    ValidatorInput,
)
from encoder_plugins.families.gliner2.tasks import (
    ENTITIES,
    Attributes,
    ClassTask,
    Field,
    Schema,
    SpanTask,
    choice_places,
    described,
    prefix_of,
)
from encoder_plugins.families.gliner2.validators import Validator, flags_of

T = TypeVar("T")


def schemas_of(data: Request, texts: int, limits: Gliner2Limits) -> list[Schema]:
    """Return the schema of each text.

    Raises:
        InvalidRequest: There is none, more than one, or one that cannot be served; ``param`` names the field.
    """
    short = [
        name for name in ("entities", "classifications", "relations", "structures") if getattr(data, name) is not None
    ]
    given = [name for name in ("schema", "schemas") if getattr(data, name) is not None] + short[:1]
    if not given:
        raise InvalidRequest(
            "neither schema, schemas, entities, classifications, relations nor structures is there; send one of them",
            param="data.schema",
        )
    if len(given) > 1:
        raise InvalidRequest(f"{given[0]} and {given[1]} are both there; send one of them", param=f"data.{given[1]}")
    if data.schemas is not None:
        if len(data.schemas) != texts:
            raise InvalidRequest(f"{len(data.schemas)} schemas for {texts} texts", param="data.schemas")
        return [
            _Reader(f"data.schemas[{position}]", limits).schema(schema) for position, schema in enumerate(data.schemas)
        ]
    if data.schema is not None:
        return [_Reader("data.schema", limits).schema(data.schema)] * texts
    return [_Reader("data", limits).short(data)] * texts


class _Reader:
    """Checks one schema; ``path`` is its field in the request."""

    def __init__(self, path: str, limits: Gliner2Limits) -> None:
        self._path = path
        self._limits = limits
        self._strings: list[tuple[str, str]] = []
        self._plain: set[str] = set()  # structures that came as a list of fields

    def short(self, data: Request) -> Schema:
        """Return the schema of a request in the forms of ``extract_entities``, ``classify_text`` and their siblings."""
        structures: dict[str, StructureInput] | None = None
        if data.structures is not None:
            structures = {}
            for name, value in data.structures.items():
                if isinstance(value, StructureInput):
                    structures[name] = value
                    continue
                self._plain.add(name)
                path = f"{self._path}.structures.{name}"
                if not value:
                    raise InvalidRequest("it takes at least one field", param=path)
                structures[name] = StructureInput(
                    fields=[
                        field_of(field, f"{path}[{position}]") if isinstance(field, str) else field
                        for position, field in enumerate(value)
                    ]
                )
        classifications = data.classifications
        if isinstance(classifications, dict):
            paths = [f"{self._path}.classifications.{name}" for name in classifications]
            tasks = [
                (name, TaskInput(labels=value) if isinstance(value, list) else value)
                for name, value in classifications.items()
            ]
        else:
            paths, tasks = self._list_of(classifications)
        return self._made(data.entities, None, structures, data.relations, paths, tasks)

    def schema(self, data: SchemaInput) -> Schema:
        """Return a schema in the form of ``Schema.from_dict``."""
        if all(part is None for part in (data.entities, data.structures, data.classifications, data.relations)):
            raise InvalidRequest(
                "it takes at least one of entities, structures, classifications and relations", param=self._path
            )
        if data.entity_attributes is not None and data.entities is None:
            raise InvalidRequest("attributes need entities", param=f"{self._path}.entity_attributes")
        paths, tasks = self._list_of(data.classifications)
        return self._made(data.entities, data.entity_attributes, data.structures, data.relations, paths, tasks)

    def _list_of(
        self, classifications: Sequence[ClassificationInput] | None
    ) -> tuple[list[str], list[tuple[str, TaskInput]]]:
        if classifications is not None and not classifications:
            raise InvalidRequest("the list is empty", param=f"{self._path}.classifications")
        tasks: list[tuple[str, TaskInput]] = [(task.task, task) for task in classifications or ()]
        return [f"{self._path}.classifications[{position}]" for position in range(len(tasks))], tasks

    def _made(
        self,
        entities: list[str] | dict[str, str | EntityInput] | None,
        attributes: Mapping[str, AttributesInput] | None,
        structures: Mapping[str, StructureInput] | None,
        relations: list[str] | dict[str, str | RelationInput] | None,
        class_paths: Sequence[str],
        tasks: Sequence[tuple[str, TaskInput]],
    ) -> Schema:
        types = named(entities, EntityInput, f"{self._path}.entities")
        pairs = named(relations, RelationInput, f"{self._path}.relations")
        if structures is not None and not structures:
            raise InvalidRequest("it is empty", param=f"{self._path}.structures")
        self._check_sizes(types, attributes or {}, structures or {}, pairs, tasks)
        spans = [self._structure(name, value) for name, value in (structures or {}).items()]
        groups: tuple[Attributes, ...] = ()
        if types:
            task, groups = self._entities(types, attributes or {})
            spans.append(task)
        spans += (self._relation(name, value) for name, value in pairs.items())
        classes = [
            self._classification(name, task, path) for path, (name, task) in zip(class_paths, tasks, strict=True)
        ]
        self._check_names(spans, classes, class_paths)
        prefix = prefix_of(spans)
        self._check_choices(spans, prefix)
        return Schema(self._path, tuple(spans), tuple(classes), groups, len(types), tuple(prefix), tuple(self._strings))

    def _check_sizes(
        self,
        types: Mapping[str, EntityInput],
        attributes: Mapping[str, AttributesInput],
        structures: Mapping[str, StructureInput],
        pairs: Mapping[str, RelationInput],
        tasks: Sequence[tuple[str, TaskInput]],
    ) -> None:
        fields = [field for structure in structures.values() for field in structure.fields]
        counts = {
            "tasks": len(structures) + bool(types) + len(pairs) + len(tasks),
            "fields": len(types)
            + sum(len(group.labels) for group in attributes.values())
            + len(fields)
            + 2 * len(pairs),
            "labels": sum(len(task.labels) for _, task in tasks),
            "choices": sum(len(field.choices or ()) for field in fields),
            "patterns": sum(len(field.validators or ()) for field in fields)
            + sum(len(value.validators or ()) for value in types.values()),
        }
        for name, count in counts.items():
            if count > (limit := getattr(self._limits, name)):
                raise InvalidRequest(f"{count} {name} in one schema; the limit is {limit}", param=self._path)

    def _name(self, text: str, path: str) -> str:
        """Return a name, label or choice after its check."""
        if not text or text.isspace():
            raise InvalidRequest("it is blank", param=path)
        return self._text(text, path, self._limits.label_characters)

    def _fields(self, structure: str) -> str:
        """Return the field of the request that lists the fields of a structure."""
        path = f"{self._path}.structures.{structure}"
        return path if structure in self._plain else f"{path}.fields"

    def _description(self, text: str, path: str) -> str:
        return self._text(text, path, self._limits.description_characters)

    def _text(self, text: str, path: str, limit: int) -> str:
        if len(text) > limit:
            raise InvalidRequest(f"{len(text)} characters; the limit is {limit}", param=path)
        self._strings.append((path, text))
        return text

    def _structure(self, name: str, value: StructureInput) -> SpanTask:
        path = f"{self._path}.structures.{name}"
        self._name(name, path)
        for option in ("mode", "anchor", "occurrence_policy"):
            if getattr(value, option) is not None:
                raise InvalidRequest("span models do not read it: leave it out", param=f"{path}.{option}")
        descriptions = {}
        names = set()
        fields = []
        for position, field in enumerate(value.fields):
            place = f"{self._fields(name)}[{position}]"
            if self._name(field.name, f"{place}.name") in names:
                raise InvalidRequest(f"the structure has two fields {field.name!r}", param=f"{place}.name")
            names.add(field.name)
            if field.cardinality is not None or field.exclusive:
                option = "exclusive" if field.cardinality is None else "cardinality"
                raise InvalidRequest("span models do not read it: leave it out", param=f"{place}.{option}")
            if field.choices is not None and not field.choices:
                raise InvalidRequest("it takes at least one choice", param=f"{place}.choices")
            choices = [
                self._name(choice, f"{place}.choices[{number}]") for number, choice in enumerate(field.choices or ())
            ]
            if field.description:
                descriptions[field.name] = self._description(field.description, f"{place}.description")
            checks = self._validators(field.validators, place)
            fields.append(Field(field.name, field.dtype == "list", field.threshold, tuple(choices), checks))
        return SpanTask("structures", name, described(name, descriptions), tuple(fields))

    def _entities(
        self, types: Mapping[str, EntityInput], attributes: Mapping[str, AttributesInput]
    ) -> tuple[SpanTask, tuple[Attributes, ...]]:
        descriptions = {}
        for name, value in types.items():
            path = f"{self._path}.entities.{name}"
            self._name(name, path)
            if value.description is not None:
                descriptions[name] = self._description(value.description, path)
        groups = {name: self._attributes(name, group, types) for name, group in attributes.items()}
        seen: dict[str, str] = {}
        for name, labels in groups.items():
            for shown, label in labels:
                path = f"{self._path}.entity_attributes.{name}.labels"
                if shown in seen:
                    raise InvalidRequest(f"the label {shown!r} is there twice, also in {seen[shown]!r}", param=path)
                seen[shown] = name
                if label in types:
                    raise InvalidRequest(f"the label {label!r} is an entity type, too: set qualify_labels", param=path)
        every = [label for labels in groups.values() for _, label in labels]
        if len(set(every)) < len(every):
            # a qualified label of one group that is a plain label of another
            raise InvalidRequest("two labels are the same for the model", param=f"{self._path}.entity_attributes")
        fields = [
            Field(
                name,
                value.dtype != "str",
                value.threshold,
                validators=self._validators(value.validators, f"{self._path}.entities.{name}"),
            )
            for name, value in types.items()
        ]
        place = {label: len(fields) + number for number, label in enumerate(sorted(every))}
        fields += (Field(label) for label in sorted(every))
        made = tuple(
            Attributes(
                name,
                tuple(shown for shown, _ in labels),
                tuple(place[label] for _, label in labels),
                attributes[name].multi_label,
                attributes[name].threshold,
                None if (applied := attributes[name].applies_to) is None else frozenset(applied),
            )
            for name, labels in groups.items()
        )
        return SpanTask("entities", ENTITIES, described(ENTITIES, descriptions), tuple(fields)), made

    def _attributes(self, name: str, group: AttributesInput, types: Mapping[str, EntityInput]) -> list[tuple[str, str]]:
        """Return each label of a group as answers have it, and as the model reads it."""
        path = f"{self._path}.entity_attributes.{name}"
        self._name(name, path)
        if name in ("text", "confidence", "start", "end"):
            raise InvalidRequest("the library has that name for something else", param=path)
        for position, kind in enumerate(group.applies_to or ()):
            if kind not in types:
                raise InvalidRequest(f"there is no entity type {kind!r}", param=f"{path}.applies_to[{position}]")
        labels = [self._name(label, f"{path}.labels[{number}]") for number, label in enumerate(group.labels)]
        return [(label, f"{name}: {label}" if group.qualify_labels else label) for label in labels]

    def _validators(self, given: Sequence[ValidatorInput] | None, path: str) -> tuple[Validator, ...]:
        for number, one in enumerate(given or ()):
            if len(one.pattern) > (limit := self._limits.pattern_characters):
                raise InvalidRequest(
                    f"{len(one.pattern)} characters; the limit is {limit}", param=f"{path}.validators[{number}].pattern"
                )
        return tuple(
            Validator(one.pattern, flags_of(one.flags), one.mode == "full", one.exclude, f"{path}.validators[{number}]")
            for number, one in enumerate(given or ())
        )

    def _relation(self, name: str, value: RelationInput) -> SpanTask:
        path = f"{self._path}.relations.{name}"
        piece = self._name(name, path)
        if value.description:
            piece = f"{name}: {self._description(value.description, path)}"
        ends = tuple(Field(end, True, value.threshold) for end in ("head", "tail"))
        return SpanTask("relations", name, piece, ends)

    def _classification(self, name: str, task: TaskInput, path: str) -> ClassTask:
        piece = self._name(name, path)
        labels = list(task.labels)
        if len(labels) < 2:
            raise InvalidRequest("it takes at least two labels", param=f"{path}.labels")
        described_labels = task.labels if isinstance(task.labels, dict) else {}
        for number, label in enumerate(labels):
            place = f"{path}.labels.{label}" if described_labels else f"{path}.labels[{number}]"
            self._name(label, place)
            if described_labels:
                self._description(described_labels[label], place)
        if len(set(labels)) < len(labels):
            raise InvalidRequest("a label is there twice", param=f"{path}.labels")
        if task.prompt:
            piece = f"{name}: {self._description(task.prompt, f'{path}.prompt')}"
        piece = described(piece, described_labels)
        for number, (before, label) in enumerate(task.examples or ()):
            place = f"{path}.examples[{number}]"
            if label not in labels:
                raise InvalidRequest(f"{label!r} is not a label of the task", param=f"{place}[1]")
            piece += f" [EXAMPLE] {self._description(before, f'{place}[0]')} [OUTPUT] {label}"
        automatic = task.class_act in (None, "auto")
        softmax = not task.multi_label if automatic else task.class_act == "softmax"
        return ClassTask(name, piece, tuple(labels), task.multi_label, task.cls_threshold, task.top_k, softmax)

    def _check_names(self, spans: Sequence[SpanTask], classes: Sequence[ClassTask], class_paths: Sequence[str]) -> None:
        """Refuse names that make the library confuse tasks: it has one table of answers for all of them."""
        taken: dict[str, str] = {}
        places = [(task.name, f"{self._path}.{task.kind}.{task.name}") for task in spans if task.kind != ENTITIES]
        places += ((task.name, path) for task, path in zip(classes, class_paths, strict=True))
        for name, path in places:
            if name == ENTITIES:
                raise InvalidRequest("the library has the name 'entities' for entities", param=path)
            if name in taken:
                raise InvalidRequest(f"the name {name!r} is that of {taken[name]}, too", param=path)
            taken[name] = path
        for task, path in zip(classes, class_paths, strict=True):
            for other in classes:
                longer = len(other.name) > len(task.name) and task.piece.startswith(other.name)
                if longer and task.piece[len(other.name) :][:1] in ("", ":", " "):
                    raise InvalidRequest(
                        f"its name and what follows in the prompt begin with the name of the task {other.name!r}, whose"
                        " settings the library would use",
                        param=path,
                    )
        keys: set[str] = set()
        for structure in (task for task in spans if task.kind == "structures"):
            for number, field in enumerate(structure.fields):
                if (key := f"{structure.name}.{field.name}") in keys:
                    raise InvalidRequest(
                        f"another structure has a field that is also called {key!r} together with its name",
                        param=f"{self._fields(structure.name)}[{number}].name",
                    )
                keys.add(key)

    def _check_choices(self, spans: Sequence[SpanTask], prefix: Sequence[str]) -> None:
        """Refuse choices whose score would be read from another word: the first that is the same without case."""
        first: dict[str, int] = {}
        for place, word in enumerate(prefix):
            first.setdefault(word.lower(), place)
        for structure, number, field, places in choice_places(spans):
            for choice, place in zip(field.choices, places, strict=True):
                if first[choice.lower()] != place:
                    raise InvalidRequest(
                        f"{choice!r} is also another choice, a field or a structure of the schema; the library would read"
                        " the score of that one",
                        param=f"{self._fields(structure.name)}[{number}].choices",
                    )


def named(value: Iterable[str] | Mapping[str, str | T] | None, kind: type[T], path: str) -> dict[str, T]:
    """Return entity types or relations with their settings, of any of the forms that they can have."""
    if value is None:
        return {}
    if not value:
        raise InvalidRequest("it is empty", param=path)
    if isinstance(value, Mapping):
        return {
            name: kind(description=setting) if isinstance(setting, str) else setting  # type: ignore[call-arg]
            for name, setting in value.items()
        }
    names = list(value)
    if len(set(names)) < len(names):
        raise InvalidRequest("a name is there twice", param=path)
    return {name: kind() for name in names}


def field_of(text: str, path: str) -> FieldInput:
    """Return the field that a string such as ``name::str::[one|other]::what it means`` describes.

    Raises:
        InvalidRequest: It has two types, two lists of choices or two descriptions.
    """
    name, *parts = text.split("::")
    dtypes = [part for part in parts if part in ("str", "list")]
    lists = [part for part in parts if part.startswith("[") and part.endswith("]")]
    others = [part for part in parts if part not in dtypes and part not in lists]
    for kind, found in (("types", dtypes), ("lists of choices", lists), ("descriptions", others)):
        if len(found) > 1:
            raise InvalidRequest(f"it has {len(found)} {kind}; a field has one", param=path)
    choices = [choice.strip() for choice in lists[0][1:-1].split("|")] if lists else None
    dtype: Literal["str", "list"] = "str" if dtypes == ["str"] or (lists and not dtypes) else "list"
    return FieldInput(name=name, dtype=dtype, choices=choices, description=others[0] if others else None)
