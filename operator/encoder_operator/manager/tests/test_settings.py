from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from encoder_operator.manager.settings import Settings

KEY = {"key": "team", "operator": "In", "values": ["search"]}


def read(monkeypatch: pytest.MonkeyPatch, selector: Any, **more: str) -> Settings:
    monkeypatch.setenv("ENCODER_NAMESPACE_SELECTOR", json.dumps(selector))
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    return Settings()


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({"matchLabel": {}}, "namespace_selector.matchLabel\n"),
        ({"matchLabels": {"team": 1}}, "namespace_selector.matchLabels.team\n"),
        ({"matchLabels": {"a team": "x"}}, "namespace_selector.matchLabels.a team.[key]\n  it is not a qualified name"),
        ({"matchLabels": {"team": "-"}}, "namespace_selector.matchLabels.team\n"),
        (
            {"matchExpressions": [KEY, KEY | {"operator": "Equals"}]},
            "namespace_selector.matchExpressions.1.operator\n",
        ),
        (
            {"matchExpressions": [KEY | {"values": []}]},
            "namespace_selector.matchExpressions.0\n  In and NotIn need values",
        ),
        (
            {"matchExpressions": [KEY | {"operator": "Exists"}]},
            "namespace_selector.matchExpressions.0\n  In and NotIn need values, Exists and DoesNotExist must have none",
        ),
        ({"matchExpressions": [KEY | {"key": "x/y/z"}]}, "matchExpressions.0.key\n  it is not a qualified name"),
    ],
)
def test_an_invalid_selector_is_refused_with_its_field(
    selector: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError) as error:
        read(monkeypatch, selector)
    assert message in str(error.value)


def test_namespaces_are_listed_or_selected_and_an_empty_selector_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = {"matchLabels": {"team": "search"}, "matchExpressions": [KEY | {"key": "example.org/tier"}]}
    assert read(monkeypatch, some).selects_namespaces
    assert not read(monkeypatch, {}).selects_namespaces
    assert read(monkeypatch, {"matchLabels": {}}, ENCODER_NAMESPACES='["a"]').namespaced
    with pytest.raises(ValidationError, match="set either namespaces or namespace_selector"):
        read(monkeypatch, some)


def test_a_quantity_may_be_a_decimal_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCODER_SERVING_RESOURCES", '{"requests": {"cpu": 0.5, "memory": 1e9}, "limits": {"cpu": 2}}')
    found = Settings().serving_resources
    assert found.requests == {"cpu": "0.5", "memory": "1000000000.0"}
    assert found.limits == {"cpu": 2}


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_PREPS", "NAMESPACES", "UPDATES", "LEASE"):
        monkeypatch.setenv(f"ENCODER_{name}", "")
    assert Settings() == Settings.model_construct()


@pytest.mark.parametrize(
    "image", ["https://x/operator:1", "x/Operator:1", "x/operator:", "x//operator", "x/operator@sha256:1", "x operator"]
)
def test_an_image_is_named_as_the_kubelet_reads_it(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "sha256:" + "a" * 64
    for good in ("", "operator", f"[::1]:5000/a/b__c-d@{digest}", f"Registry.example.com:5000/a.b/c:1.0_x@{digest}"):
        monkeypatch.setenv("ENCODER_IMAGES", json.dumps({"operator": good, "engine": {"cpu": {"a": good}}}))
        assert Settings().images.operator == good
    for named in ({"operator": image}, {"prep": {"colbert": image}}, {"engine": {"cpu": {"colbert": image}}}):
        monkeypatch.setenv("ENCODER_IMAGES", json.dumps(named))
        with pytest.raises(ValidationError, match="it is not the name of an image"):
            Settings()
