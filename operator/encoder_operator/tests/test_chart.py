"""What can be said of the chart without helm; `helm lint` and `helm template` run where helm is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from encoder_operator.settings import Settings

CHART = Path(__file__).parents[3] / "charts" / "encoder-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}


def test_default_values_fit_the_schema() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    "wrong", [{"imagee": {}}, {"image": {"sha": "x"}}, {"crds": {"enable": True}}, {"settings": {"x": 1}}]
)
def test_a_misspelt_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_every_value_has_a_schema_and_every_top_level_value_is_used() -> None:
    assert set(VALUES) <= set(SCHEMA["properties"])
    text = "\n".join(TEMPLATES.values())
    assert all(re.search(rf"\.Values\.{name}\b", text) for name in VALUES)


def test_every_value_is_explained() -> None:
    text = (CHART / "values.yaml").read_text()
    for name in VALUES:
        assert re.search(rf"(^|\n)# -- [^\n]+\n(#[^\n]*\n)*{name}:|\n{name}:\n  # -- ", text), name


def test_every_setting_that_the_chart_writes_exists() -> None:
    written = set(re.findall(r"name: ENCODER_(\w+)", TEMPLATES["deployment.yaml"]))
    assert written <= {name.upper() for name in Settings.model_fields}
    assert len(written) >= 8


def test_no_permission_is_a_wildcard_and_none_is_about_secrets() -> None:
    text = TEMPLATES["rbac.yaml"]
    assert "*" not in re.sub(r"#.*", "", text)
    assert not re.search(r"resources:.*\bsecrets\b", text)
    assert "pods/exec" not in text


def test_the_chart_and_the_project_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
