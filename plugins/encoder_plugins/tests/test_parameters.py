"""Parameters of a preparation: what is accepted, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from encoder_plugins import catalog, parameters
from encoder_plugins.plugin import Parameter, Plugin, resolve

ONE = Parameter(name="one", values=("a", "b"), description="One of two.")
SEVERAL = Parameter(name="several", values=("de", "en", "ja"), several=True, description="Some of three.")
PLUGIN = replace(catalog.get("sentence_transformer"), parameters=(ONE, SEVERAL))


def test_values_are_read_from_a_command_line_as_they_were_written() -> None:
    found = parameters.read(PLUGIN, ["several=ja,de", "one=b"])
    assert found == {"one": "b", "several": ("ja", "de")}
    assert parameters.arguments(found) == ["one=b", "several=ja,de"]
    assert parameters.json_values(found) == {"one": "b", "several": ["ja", "de"]}
    assert parameters.check(PLUGIN, parameters.json_values(found)) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("two=a", "two: plugin sentence_transformer has no such parameter; it has one, several"),
        ("one=c", "one: is 'c'; supported: a, b"),
        ("one=a,b", "one: is 'a,b'; supported: a, b"),
        ("several=de,fr", "several: is 'fr'; supported: de, en, ja"),
        ("several=de,de", "several: is de, de; expected different values"),
        ("several=", "several: is ''; supported"),
        ("one", "one: expected NAME=VALUE"),
    ],
)
def test_what_a_plugin_does_not_take_is_refused_by_name(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^" + message):
        parameters.read(PLUGIN, [given])


def test_a_parameter_that_is_given_twice_or_in_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^one: is given twice"):
        parameters.read(PLUGIN, ["one=a", "one=b"])
    with pytest.raises(ValueError, match=r"^one: is a list; expected one value"):
        parameters.check(PLUGIN, {"one": ["a"]})
    with pytest.raises(ValueError, match=r"^several: is 'de'; expected a list"):
        parameters.check(PLUGIN, {"several": "de"})
    with pytest.raises(ValueError, match=r"^several: is empty"):
        parameters.check(PLUGIN, {"several": []})
    with pytest.raises(ValueError, match=r"^one: plugin sentence_transformer has no such parameter; it has none"):
        parameters.check(replace(PLUGIN, parameters=()), {"one": "a"})


@pytest.mark.parametrize("plugin", [pytest.param(plugin, id=plugin.name) for plugin in catalog.plugins().values()])
def test_a_checkpoint_format_takes_the_parameters_that_its_plugin_declares(plugin: Plugin) -> None:
    assert hasattr(resolve(plugin.checkpoint), "configured") or not plugin.parameters
    kinds = {entry.name: entry.several for other in catalog.plugins().values() for entry in other.parameters}
    assert all(kinds[parameter.name] == parameter.several for parameter in plugin.parameters)
