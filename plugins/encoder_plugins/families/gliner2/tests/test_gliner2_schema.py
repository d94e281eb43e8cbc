"""Schemas: their forms, and what is refused, by the path of its field."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from encoder_plugins.errors import MOST_MESSAGE, MOST_PARAM, InvalidRequest
from encoder_plugins.families.gliner2 import schema as schemas
from encoder_plugins.families.gliner2.request import Gliner2Limits, Request
from encoder_plugins.families.gliner2.tasks import Schema
from encoder_plugins.families.gliner2.tests import library
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Envelope


def read(**data: Any) -> Schema:
    return read_with(library.LIMITS, **data)


def read_with(limits: Gliner2Limits, **data: Any) -> Schema:
    envelope = bodies.decode(json.dumps({"data": {"text": "x", **data}}).encode(), Envelope[Request])
    (found,) = schemas.schemas_of(envelope.data, 1, limits)
    return found


def structure(*fields: dict[str, Any], name: str = "s") -> dict[str, Any]:
    return {name: {"fields": list(fields)}}


def test_the_short_forms_are_the_same_schema() -> None:
    short = read(
        entities={"p": "a human"},
        structures={"it": ["a::str::[x|y]::what", "b", {"name": "c", "dtype": "str"}, "d::[1]", "e::list::[2]"]},
        classifications={"t": ["a", "b"], "u": {"labels": {"c": "1", "d": "2"}, "multi_label": True}},
        relations=["r"],
    )
    fields: list[dict[str, Any]] = [
        {"name": "a", "dtype": "str", "choices": ["x", "y"], "description": "what"},
        {"name": "b"},
        {"name": "c", "dtype": "str"},
        {"name": "d", "dtype": "str", "choices": ["1"]},
        {"name": "e", "choices": ["2"]},
    ]
    long = read(
        schema={
            "entities": {"p": {"description": "a human"}},
            "structures": structure(*fields, name="it"),
            "classifications": [
                {"task": "t", "labels": ["a", "b"]},
                {"task": "u", "labels": {"c": "1", "d": "2"}, "multi_label": True},
            ],
            "relations": {"r": {}},
        }
    )
    assert replace(short, path="", strings=()) == replace(long, path="", strings=())
    assert short.prefix == (
        "(",
        "it:",
        "a",
        "(",
        "x",
        "|",
        "y",
        ")",
        ",",
        "d",
        "(",
        "1",
        ")",
        ",",
        "e",
        "(",
        "2",
        ")",
        ")",
    )
    assert short.queries == 1 + 19 * (5 + 2)


SCHEMA_CASES = [
    ({}, "data.schema"),
    ({"entities": []}, "data.schema.entities"),
    ({"entities": ["a", "a"]}, "data.schema.entities"),
    ({"entities": ["a", " "]}, "data.schema.entities. "),
    ({"entities": {"a": {"threshold": 1.5}}}, "data.schema.entities.a.threshold"),
    ({"entities": {"a": {"dtype": "int"}}}, "data.schema.entities.a.dtype"),
    ({"entities": {"a": {"color": "red"}}}, "data.schema.entities.a.color"),
    ({"entities": ["a"], "other": 1}, "data.schema.other"),
    ({"structures": {}}, "data.schema.structures"),
    ({"structures": {"s": {"fields": []}}}, "data.schema.structures.s.fields"),
    ({"structures": structure({"name": ""})}, "data.schema.structures.s.fields[0].name"),
    ({"structures": structure({"name": "a"}, {"dtype": "str"})}, "data.schema.structures.s.fields[1].name"),
    ({"structures": structure({"name": "a", "choices": []})}, "data.schema.structures.s.fields[0].choices"),
    ({"structures": structure({"name": "a", "choices": "xy"})}, "data.schema.structures.s.fields[0].choices"),
    ({"classifications": []}, "data.schema.classifications"),
    ({"classifications": [{"task": "t", "labels": ["a"]}]}, "data.schema.classifications[0].labels"),
    ({"classifications": [{"task": "t", "labels": ["a", "a"]}]}, "data.schema.classifications[0].labels"),
    ({"classifications": [{"task": "t", "labels": ["a", ""]}]}, "data.schema.classifications[0].labels[1]"),
    ({"classifications": [{"task": "t", "labels": ["a", "b"], "top_k": 0}]}, "data.schema.classifications[0].top_k"),
    ({"classifications": [{"task": "t", "labels": ["a", "b"], "class_act": "tanh"}]}, "data.schema.classifications[0].class_act"),
    ({"classifications": [{"task": "t", "labels": ["a", "b"]}] * 2}, "data.schema.classifications[1]"),
    ({"relations": {"r": {"threshold": -1}}}, "data.schema.relations.r.threshold"),
    ({"relations": ["r"], "entity_attributes": {"g": {"labels": ["a"]}}}, "data.schema.entity_attributes"),
    ({"entities": ["a"], "entity_attributes": {"g": {"labels": ["a"]}}}, "data.schema.entity_attributes.g.labels"),
    ({"entities": ["a"], "entity_attributes": {"g": {"labels": ["b", "b"]}}}, "data.schema.entity_attributes.g.labels"),
    ({"entities": ["a"], "entity_attributes": {"end": {"labels": ["b"]}}}, "data.schema.entity_attributes.end"),
    (
        {"entities": ["a"], "entity_attributes": {"g": {"labels": ["b"], "applies_to": ["c"]}}},
        "data.schema.entity_attributes.g.applies_to[0]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "path"), SCHEMA_CASES)
def test_what_the_library_refuses_is_refused_by_its_field(data: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(schema=data)
    assert caught.value.param == path
    assert not library.call("accepted", data)


def test_no_attributes_are_none() -> None:
    data: dict[str, Any] = {"entities": {"a": "what it means"}, "entity_attributes": {}}
    assert library.call("accepted", data)
    found = read(schema=data)
    assert (found.attributes, [field.name for field in found.spans[0].fields]) == ((), ["a"])


@pytest.mark.parametrize(
    ("data", "path", "why"),
    [
        ({"structures": structure({"name": "a"}, name="entities")}, "data.schema.structures.entities", "'entities'"),
        ({"relations": ["entities"]}, "data.schema.relations.entities", "'entities'"),
        ({"relations": ["s"], "structures": structure({"name": "a"})}, "data.schema.relations.s", "structures.s"),
        (
            {"relations": ["t"], "classifications": [{"task": "t", "labels": ["a", "b"]}]},
            "data.schema.classifications[0]",
            "relations.t",
        ),
        (
            {
                "classifications": [
                    {"task": "a", "labels": ["x", "y"], "prompt": "b c"},
                    {"task": "a: b", "labels": ["x", "y"]},
                ]
            },
            "data.schema.classifications[0]",
            "'a: b'",
        ),
        (
            {"structures": {"x.y": {"fields": [{"name": "z"}]}, "x": {"fields": [{"name": "a"}, {"name": "y.z"}]}}},
            "data.schema.structures.x.fields[1].name",
            "'x.y.z'",
        ),
        ({"structures": structure({"name": "a"}, {"name": "a"})}, "data.schema.structures.s.fields[1].name", "two fields"),
        (
            {"structures": structure({"name": "a", "choices": ["x"]}, {"name": "b", "choices": ["y", "X"]})},
            "data.schema.structures.s.fields[1].choices",
            "'X'",
        ),
        ({"structures": structure({"name": "a", "choices": ["x", "a"]})}, "data.schema.structures.s.fields[0].choices", "'a'"),
        ({"structures": structure({"name": "a", "choices": ["("]})}, "data.schema.structures.s.fields[0].choices", "'\\('"),
        ({"structures": {"s": {"fields": [{"name": "a"}], "mode": "latent"}}}, "data.schema.structures.s.mode", "span models"),
        ({"structures": structure({"name": "a", "exclusive": True})}, "data.schema.structures.s.fields[0].exclusive", "span models"),
        ({"structures": structure({"name": "a", "cardinality": "one"})}, "data.schema.structures.s.fields[0].cardinality", "span models"),
        ({"structures": structure({"name": "a"}, name=" ")}, "data.schema.structures. ", "blank"),
        ({"entities": ["a"], "entity_attributes": {"": {"labels": ["b"]}}}, "data.schema.entity_attributes.", "blank"),
        (
            {
                "entities": ["a"],
                "entity_attributes": {"g": {"labels": ["x"], "qualify_labels": True}, "h": {"labels": ["g: x"]}},
            },
            "data.schema.entity_attributes",
            "the same for the model",
        ),
        (
            {"classifications": [{"task": "t", "labels": ["a", "b"], "examples": [["x", "c"]]}]},
            "data.schema.classifications[0].examples[0][1]",
            "'c' is not a label",
        ),
        ({"entities": ["x" * 257]}, f"data.schema.entities.{'x' * 257}", "257 characters; the limit is 256"),
        ({"entities": [str(number) for number in range(257)]}, "data.schema", "257 fields in one schema; the limit is 256"),
        ({"relations": [str(number) for number in range(65)]}, "data.schema", "65 tasks in one schema; the limit is 64"),
        ({"entities": {"a": "x" * 2_001}}, "data.schema.entities.a", "2001 characters; the limit is 2000"),
        (
            {"classifications": [{"task": "t", "labels": {"a": "", "b": "x" * 2_001}}]},
            "data.schema.classifications[0].labels.b",
            "2001 characters",
        ),
    ],
)  # fmt: skip
def test_what_the_library_would_confuse_or_drop_is_refused(data: dict[str, Any], path: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        read(schema=data)
    assert caught.value.param == path


@pytest.mark.parametrize(
    ("data", "begins", "ends"),
    [
        ({"structures": structure({"name": " "}, name="k" * 5_000)}, "data.schema.structures.kkk", "kkk"),
        ({"entities": {"é" * 200_000: {"validators": [{"pattern": "(" * 2_000}]}}}, "data.schema.entities.éé", "éé"),
        (
            {"classifications": [{"task": "t", "labels": ["a", "b"], "examples": [["x", "c" * 200_000]]}]},
            "data.schema.classifications[0]",
            ".examples[0][1]",
        ),
    ],
)
def test_a_refusal_does_not_repeat_what_is_too_long(data: dict[str, Any], begins: str, ends: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(schema=data)
    assert caught.value.param.startswith(begins)
    assert caught.value.param.endswith(ends)
    assert len(caught.value.param) <= MOST_PARAM
    assert len(caught.value.message) <= MOST_MESSAGE
    assert str(caught.value) == f"{caught.value.param}: {caught.value.message}"


FULL: dict[str, Any] = {
    "structures": structure(
        {"name": "field", "choices": ["x", "y"], "validators": [{"pattern": "a.c"}, {"pattern": "b"}]},
        {"name": "g", "choices": ["z"], "description": "what it is"},
    ),
    "entities": {"p": {"validators": [{"pattern": "[a]+"}]}, "place": "where something is"},
    "entity_attributes": {"size": {"labels": ["large", "small", "middle"]}},
    "relations": {"in": "is inside"},
    "classifications": [
        {"task": "t", "labels": ["a", "b"], "examples": [["so", "b"]]},
        {"task": "u", "labels": {"c": "1", "d": "2", "e": "3"}, "prompt": "which one"},
    ],
}


def test_descriptions_prompts_and_examples_are_read_with_the_name_of_their_task() -> None:
    found = read(schema=FULL)
    assert [task.piece for task in found.spans] == [
        "s [DESCRIPTION] g: what it is",
        "entities [DESCRIPTION] place: where something is",
        "in: is inside",
    ]
    assert [task.piece for task in found.classes] == [
        "t [EXAMPLE] so [OUTPUT] b",
        "u: which one [DESCRIPTION] c: 1 [DESCRIPTION] d: 2 [DESCRIPTION] e: 3",
    ]
    # a string that the model reads as one of its markers is refused by its field
    own = "data.schema.classifications[1]"
    assert [each for each in found.strings if each[0].startswith(own)] == [
        (own, "u"),
        (f"{own}.labels.c", "c"),
        (f"{own}.labels.c", "1"),
        (f"{own}.labels.d", "d"),
        (f"{own}.labels.d", "2"),
        (f"{own}.labels.e", "e"),
        (f"{own}.labels.e", "3"),
        (f"{own}.prompt", "which one"),
    ]


def test_a_relation_has_all_heads_and_tails_above_its_own_threshold() -> None:
    (relation,) = read(relations={"r": {"threshold": 0.75}}).spans
    assert [(end.name, end.many, end.threshold) for end in relation.fields] == [
        ("head", True, 0.75),
        ("tail", True, 0.75),
    ]


def test_a_field_of_a_structure_may_be_called_like_an_end_of_a_relation() -> None:
    # both are "a.b.head" together with their names, and answers have them in different places
    found = read(structures=structure({"name": "b.head"}, name="a"), relations=["a.b"])
    assert [task.name for task in found.spans] == ["a", "a.b"]


def test_short_structures_may_be_written_in_both_forms_side_by_side() -> None:
    found = read(structures={**structure({"name": "a"}, name="long"), "short": ["b::[open", "c::open]"]})
    assert [(task.piece, [field.name for field in task.fields]) for task in found.spans] == [
        ("long", ["a"]),
        # brackets that are not a pair are part of a description
        ("short [DESCRIPTION] b: [open [DESCRIPTION] c: open]", ["b", "c"]),
    ]
    assert [field.choices for field in found.spans[1].fields] == [(), ()]


@pytest.mark.parametrize(
    ("limit", "most", "path"),
    [
        ("tasks", 5, ""),
        ("fields", 9, ""),
        ("labels", 5, ""),
        ("choices", 3, ""),
        ("patterns", 3, ""),
        ("label_characters", len("middle"), ".entity_attributes.size.labels[2]"),
        ("description_characters", len("where something is"), ".entities.place"),
        ("pattern_characters", len("[a]+"), ".entities.p.validators[0].pattern"),
    ],
)
def test_a_schema_is_taken_up_to_each_limit(limit: str, most: int, path: str) -> None:
    assert read_with(replace(library.LIMITS, **{limit: most}), schema=FULL)
    with pytest.raises(InvalidRequest, match=f": {most} .*; the limit is {most - 1}$") as caught:
        read_with(replace(library.LIMITS, **{limit: most - 1}), schema=FULL)
    assert caught.value.param == f"data.schema{path}"


def test_the_first_two_forms_that_are_there_together_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^data\.schemas: schema and schemas are both there; send one of them$"):
        read(schema={"entities": ["a"]}, schemas=[], entities=["a"])


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({}, "data.schema"),
        ({"schema": {"entities": ["a"]}, "entities": ["a"]}, "data.entities"),
        ({"schema": {"entities": ["a"]}, "schemas": []}, "data.schemas"),
        ({"schemas": [{"entities": ["a"]}] * 2}, "data.schemas"),
        ({"schemas": [{"entities": [""]}]}, "data.schemas[0].entities."),
        ({"structures": {"s": []}}, "data.structures.s"),
        ({"structures": {"s": ["a", "b::str::list"]}}, "data.structures.s[1]"),
        ({"structures": {"s": ["a::one::two"]}}, "data.structures.s[0]"),
        ({"structures": {"s": ["a", "a"]}}, "data.structures.s[1].name"),
        ({"classifications": {"t": ["a"]}}, "data.classifications.t.labels"),
        ({"classifications": {"t": {"labels": ["a", "b"], "task": "u"}}}, "data.classifications.t.task"),
    ],
)
def test_the_short_forms_are_refused_by_their_field(data: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**data)
    assert caught.value.param == path


def test_random_schemas_are_served() -> None:
    rng = random.Random(5)
    for _ in range(200):
        data = library.random_schema(rng)
        assert read(schema=json.loads(json.dumps(data))).spans or "classifications" in data
