from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import LabelSelector


def entry(operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "team", "operator": operator, "values": list(values)}]}


SEARCH, ADS, EMPTY, NONE = {"team": "search", "x": "y"}, {"team": "ads"}, {"team": ""}, {"x": "y"}


@pytest.mark.parametrize(
    ("selector", "matching"),
    [
        ({}, [SEARCH, ADS, EMPTY, NONE]),
        ({"matchLabels": {"team": "search"}}, [SEARCH]),
        ({"matchLabels": {"team": ""}}, [EMPTY]),
        ({"matchLabels": {"team": "search", "x": "z"}}, []),
        (entry("In", "search", "ads"), [SEARCH, ADS]),
        (entry("In", ""), [EMPTY]),
        # as in Kubernetes, a label that is absent has none of the values
        (entry("NotIn", "search"), [ADS, EMPTY, NONE]),
        (entry("Exists"), [SEARCH, ADS, EMPTY]),
        (entry("DoesNotExist"), [NONE]),
        (entry("NotIn", "ads") | {"matchLabels": {"x": "y"}}, [SEARCH, NONE]),
        (
            {"matchExpressions": [*entry("Exists")["matchExpressions"], *entry("NotIn", "")["matchExpressions"]]},
            [SEARCH, ADS],
        ),
    ],
)
def test_a_selector_matches_what_it_matches_in_kubernetes(selector: Any, matching: list[dict[str, str]]) -> None:
    found = LabelSelector.model_validate(selector)
    assert [labels for labels in (SEARCH, ADS, EMPTY, NONE) if found.matches(labels)] == matching
