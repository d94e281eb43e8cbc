"""The methods of GLiNER2: schemas as the library builds them, what is sent, and which arguments are refused by name."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from encoder_checkpoints.original import original
from encoder_client import (
    ArgumentError,
    AsyncGLiNER2,
    AttributeGroup,
    GLiNER,
    GLiNER2,
    InvalidAnswerError,
    RegexValidator,
    Schema,
)
from encoder_client.commands import main
from encoder_client.extraction.schema import classification_schema, json_schema
from encoder_client.tests.scripted_server import Reply, ScriptedServer, entities

ORACLE = "encoder_client.tests.gliner2_oracle"


def mentions(data: Any) -> Reply:
    """Answer each text with itself, as an entity of every type."""
    schemas = data.get("schemas") or [data["schema"]] * len(data["texts"])
    results = [
        {
            "entities": {
                name: [{"text": text, "start": 0, "end": len(text), "score": 0.5}]
                for name in schema.get("entities", ())
            },
            "classifications": {},
            "relations": {},
            "structures": {name: [] for name in schema.get("structures", ())},
        }
        for text, schema in zip(data["texts"], schemas, strict=True)
    ]
    return Reply(200, {"data": {"results": results, "usage": {}}})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("deberta_gliner2", mentions) as server:
        yield server


def library(function: str, *arguments: Any) -> Any:
    return original("gliner2").call(f"{ORACLE}:{function}", *arguments)


GROUP = {"labels": ["large", "small"], "multi_label": True, "threshold": 0.4, "qualify_labels": True}
STEPS: Any = [
    ("entities", [["city", "date"]], {"dtype": "str", "threshold": 0.25}),
    ("entities", [{"person": "a human being", "firm": {"dtype": "str", "threshold": 0.0}, "thing": {}}], {}),
    ("entities", ["country"], {}),
    ("entity_attributes", [{"size": GROUP, "age": {"labels": ["old"], "applies_to": ["city"]}}], {}),
    ("classification", ["topic", ["news", "sport"]], {}),
    ("classification", ["tone", {"calm": "no noise", "angry": "noise"}, True, 0.3, 1], {"prompt": "how is it"}),
    ("classification", ["kind", ["a", "b"]], {"class_act": "sigmoid", "examples": [("a text", "a")]}),
    ("relations", [["leads", "owns"]], {"threshold": 0.75}),
    ("relations", [{"born in": "where it began", "knows": {"threshold": 0.5, "description": "has met"}}], {}),
    ("relations", ["sells"], {}),
    ("structure", ["career"], {}),
    ("field", ["name", "str"], {"description": "in full"}),
    ("field", ["kind", "str", ["leader", "athlete"]], {"threshold": 0.2}),
    ("structure", ["record"], {}),
    ("field", ["item"], {}),
    ("relations", ["follows"], {}),
    ("entities", ["person"], {"dtype": "str"}),
]


def test_schemas_are_built_as_in_the_library() -> None:
    found: Any = Schema()
    for name, arguments, options in STEPS:
        if name == "entity_attributes":
            arguments = [{group: AttributeGroup(**values) for group, values in arguments[0].items()}]
        found = getattr(found, name)(*arguments, **options)
    assert library("read", found.to_dict()) == library("built", STEPS)
    again = Schema.from_json(json.dumps(found.to_dict())).entities("one more")
    assert library("read", again.to_dict()) == library("built", [*STEPS, ("entities", ["one more"], {})])
    short = Schema.from_dict({"entities": ["a"], "relations": {"b": "what it means"}}).relations("c")
    assert library("read", short.to_dict())["relations"] == {"b": {"description": "what it means"}, "c": {}}


RECORDS: Any = {
    "invoice": ["number", "total::str", "kind::[paid|open ]::whether it is", "items::list::[a|b]", "x::what it means"],
    "person": [{"name": "first", "dtype": "str", "threshold": 0.3}, {"name": "sex", "choices": ["m", "f"]}],
}
CLASSES: Any = {
    "topic": ["news", "sport"],
    "tone": {"labels": ["a", "b"], "multi_label": True},
    "k": {"a": "one", "b": "two"},
}


def test_short_forms_of_records_and_classes_are_read_as_in_the_library() -> None:
    assert library("read", json_schema(RECORDS).to_dict()) == library("parsed", "records", RECORDS)
    assert library("read", classification_schema(CLASSES).to_dict()) == library("parsed", "classes", CLASSES)


def test_a_list_is_split_and_each_text_has_its_own_schema(server: ScriptedServer) -> None:
    texts = [str(number) for number in range(20)]
    schemas = [{"entities": [f"label {number}"]} for number in range(20)]
    with GLiNER2(server.url) as model:
        found = model.batch_extract(texts, schemas, include_spans=True)
        assert model.batch_extract([], schemas[0]) == []
        assert len(server.posted) == 3
        schema = model.create_schema().entities("a", dtype="str")
        assert model.extract("b", schema, 0.25, overlap_policy="flat") == {"entities": {"a": "b"}}
        assert model.extract_json("b", {"empty": ["field"]}) == {"empty": []}
    for number, answer in enumerate(found):
        one = {"text": str(number), "start": 0, "end": len(str(number))}
        assert answer == {"entities": {f"label {number}": [one]}}
    assert server.posted[3].data == {
        "texts": ["b"],
        "schema": {"entities": {"a": {"dtype": "str"}}},
        "threshold": 0.25,
        "overlap_policy": "flat",
        "overflow": "refuse",
    }


def test_long_texts_are_read_in_chunks(server: ScriptedServer) -> None:
    with GLiNER2(server.url) as model:
        model.extract_entities_long("a", ["x"], 0.3, 384, 64, 4)
    assert {"overflow": "chunk", "threshold": 0.3}.items() <= server.posted[0].data.items()


REFUSED: Any = {
    "num_workers": {"num_workers": 2},
    "hidden_states": {"hidden_states": []},
    "format_results": {"format_results": False},
    "max_len": {"max_len": 100},
    "batch_size": {"batch_size": 0},
    "schemas": {"schemas": 5},
    "schemas[1]": {"texts": ["a", "b"], "schemas": [{}, 5]},
    "texts": {"texts": "one text"},
    "texts[0]": {"texts": [5]},
    "threshold": {"threshold": None},
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_servers_cannot_honour_is_refused_by_name(server: ScriptedServer, param: str) -> None:
    with GLiNER2(server.url) as model:
        with pytest.raises(ArgumentError):
            model.batch_extract(["a"], {"entities": ["x"]}, threshold=float("nan"))
        with pytest.raises(ArgumentError) as caught:
            model.batch_extract(**{"texts": ["a"], "schemas": {"entities": ["x"]}, **REFUSED[param]})
        assert caught.value.param == param
        assert server.posted == []


class Theirs:
    """A schema of the library, as far as this package reads it."""

    def __init__(self) -> None:
        self._entity_metadata = {"city": {"validators": [RegexValidator(re.compile("x"), exclude=True)]}, "b": {}}
        self._field_metadata = {"s.f": {"validators": [RegexValidator("y", "partial", flags=re.I | re.A)]}}

    def build(self) -> Any:
        return {"entity_descriptions": {"b": ""}}

    def to_dict(self) -> Any:
        # neither the validators nor the empty description
        return {"entities": ["city", "b"], "structures": {"s": {"fields": [{"name": "f"}, {"name": "g"}]}}}


def test_what_the_librarys_own_dictionaries_lack_is_sent(server: ScriptedServer) -> None:
    city = {"pattern": "x", "mode": "full", "exclude": True, "flags": []}
    field = {"pattern": "y", "mode": "partial", "exclude": False, "flags": ["IGNORECASE", "ASCII"]}
    rules: Any = Theirs()._entity_metadata["city"], Theirs()._field_metadata["s.f"]
    ours: Any = Schema().entities({"city": rules[0], "b": {}}).structure("s").field("f", **rules[1]).field("g")
    with GLiNER2(server.url) as model:
        model.extract("a", Theirs())
        model.extract("a", ours)
        model.extract_entities("a", {"b": {"validators": [RegexValidator("z")]}})
    for request in server.posted[:2]:
        schema = request.data["schema"]
        assert schema["entities"]["city"]["validators"] == [city]
        assert not schema["entities"]["b"].get("validators")
        first, second = schema["structures"]["s"]["fields"]
        assert (first["validators"], "validators" in second) == ([field], False)
    assert server.posted[0].data["schema"]["entities"]["b"] == {"description": ""}
    assert server.posted[2].data["schema"]["entities"]["b"]["validators"][0]["flags"] == ["IGNORECASE"]


def test_the_library_has_the_model_read_what_is_there_twice() -> None:
    steps: Any = [("structure", ["s"], {}), ("field", ["a"], {}), ("structure", ["s"], {}), ("field", ["b"], {})]
    steps += [("relations", [["in", "in"]], {}), ("relations", ["in"], {})]
    assert library("sections", steps) == {"json_structures": ["s", "s"], "relations": ["in", "in"]}
    once = library("built", steps)
    assert (list(once["structures"]), once["relations"]) == (["s"], ["in"])


@pytest.mark.parametrize("labels", [{"news": None, "sport": "a game"}, {1: "one", "two": "two"}])
def test_a_label_without_a_description_is_refused_and_not_left_out(server: ScriptedServer, labels: Any) -> None:
    with GLiNER2(server.url) as model, pytest.raises(ArgumentError, match="its description is not a text") as caught:
        model.classify_text("a", {"topic": {"labels": labels}})
    assert (caught.value.param, server.posted) == ("labels", [])
    task = {"task": "topic", "labels": labels}
    (sent,) = Schema.from_dict({"classifications": [{**task, "top_k": None}]}).to_dict()["classifications"]
    assert sent == task


@pytest.mark.parametrize("name", ["s", "in"])
def test_a_structure_or_relation_that_is_there_twice_is_refused(server: ScriptedServer, name: str) -> None:
    # the library's own dictionary has the last one alone
    class Built(Theirs):
        def build(self) -> Any:
            return {"json_structures": [{"s": {}}, {"s": {}}]} if name == "s" else {"relations": [{"in": {}}] * 2}

    ours: Any = Schema().relations(["in", "in"]).structure("s").field("a")
    with pytest.raises(ArgumentError, match=f"'{name}' is there already"):
        ours.structure("s") if name == "s" else ours.relations(["at", "in"])
    with GLiNER2(server.url) as model, pytest.raises(ArgumentError, match=f"'{name}' is there already") as caught:
        model.extract("a", Built())
    assert caught.value.param == "schemas"
    assert server.posted == []


def test_other_chunks_and_what_is_no_schema_are_refused_by_name(server: ScriptedServer) -> None:
    rule = RegexValidator("x", flags=re.LOCALE)
    model: Any = GLiNER2(server.url)
    empty: Any = Schema()
    calls: Any = {
        "chunk_size": lambda: model.extract_long("a", {}, chunk_size=100),
        "chunk_overlap": lambda: model.batch_extract_json_long(["a"], {}, chunk_overlap=1),
        "schemas": lambda: model.extract("a", object()),
        "text": lambda: model.extract(["a"], {}),
        "validators": lambda: empty.structure("x").field("y", validators=[rule]),
        "entity_types": lambda: model.extract_entities("a", 5),
        "entity_types.city": lambda: model.extract_entities("a", {"city": 5}),
        "relation_types": lambda: model.extract_relations("a", ["in", 5]),
        "labels": lambda: model.classify_text("a", {"topic": "news"}),
        "tasks": lambda: model.classify_text("a", ["topic"]),
        "structures": lambda: model.extract_json("a", ["invoice"]),
        "structures.invoice": lambda: model.extract_json("a", {"invoice": "number"}),
        "structures.invoice[1]": lambda: model.extract_json("a", {"invoice": ["number", 5]}),
        "validators[1]": lambda: empty.entities("x", validators=[RegexValidator("x"), "x"]),
        "choices": lambda: model.extract_json("a", {"invoice": [{"name": "kind", "choices": "paid"}]}),
        "groups.size": lambda: empty.entity_attributes({"size": {"labels": ["large"]}}),
    }
    with model:
        for param, call in calls.items():
            with pytest.raises(ArgumentError) as caught:
                call()
            assert caught.value.param == param
    with pytest.raises(ArgumentError) as caught:
        empty.entities("x", validators=rule)
    assert (caught.value.param, server.posted) == ("validators", [])


def test_servers_of_other_families_and_other_answers_are_errors(server: ScriptedServer) -> None:
    with (
        ScriptedServer("deberta_gliner", entities) as other,
        GLiNER2(other.url) as model,
        pytest.raises(ArgumentError, match="runs the plugin deberta_gliner,"),
    ):
        model.extract_entities("a", ["x"])
    with GLiNER(server.url) as model, pytest.raises(ArgumentError, match="runs the plugin deberta_gliner2,"):
        model.predict_entities("a", ["x"])
    server.handler = lambda data: Reply(200, {"data": {"results": [{}]}})
    with GLiNER2(server.url) as model, pytest.raises(InvalidAnswerError):
        model.extract_relations("a", ["x"])


def test_the_methods_can_be_awaited(server: ScriptedServer) -> None:
    async def called() -> Any:
        async with AsyncGLiNER2(server.url) as model:
            return await model.batch_extract_entities(["a", "b"], {"x": "a letter"}, include_confidence=True)

    assert asyncio.run(called()) == [{"entities": {"x": [{"text": text, "confidence": 0.5}]}} for text in "ab"]


def test_the_command_line_prints_entities(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", server.url, "Tim Cook", "--label", "boss"]) == 0
    assert capsys.readouterr().out.split() == ["0.500", "boss", "Tim", "Cook"]
    assert main(["ask", server.url, "Tim Cook"]) == 1
    assert "--label" in capsys.readouterr().err
    assert main(["bench", server.url, "--requests", "4", "--warm", "1", "--json"]) == 0
    assert '"failed": {}' in capsys.readouterr().out
