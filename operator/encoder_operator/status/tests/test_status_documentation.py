from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import crd, docs
from encoder_operator.cli import generate
from encoder_operator.status import conditions
from encoder_operator.status.reasons import EventReason, Reason

ROOT = Path(__file__).parents[4]


def test_every_reason_has_a_row_and_every_row_a_reason() -> None:
    assert sorted(conditions.reason_docs()) == sorted(Reason)


def test_every_row_has_known_conditions_a_meaning_and_a_remedy() -> None:
    for reason, advice in conditions.reason_docs().items():
        assert set(advice.conditions) <= set(conditions.CONDITIONS), reason
        assert advice.meaning, reason
        assert advice.remedy, reason


def test_troubleshooting_names_reasons_and_conditions_that_exist() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    # a code span of one word in CamelCase is a reason or a condition
    named = set(re.findall(r"`((?:[A-Z][a-z]+)+[A-Z]*)`", text))
    assert len(named) > 40
    assert named <= {*Reason, *EventReason, *conditions.CONDITIONS}
    # and a row that begins with both says where it is seen
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert len(rows) > 30
    assert [row for row in rows if not conditions.may_have_reason(row[1], Reason(row[0]))] == []


def rules(schema: Any) -> set[str]:
    """Return the sentence of every rule, wherever in a schema it stands."""
    if isinstance(schema, list):
        return {found for entry in schema for found in rules(entry)}
    if not isinstance(schema, dict):
        return set()
    own = {entry["message"] for entry in schema.get("x-kubernetes-validations", [])}
    return own | {found for value in schema.values() for found in rules(value)}


def test_the_page_holds_every_rule_of_the_api_server_once() -> None:
    lines = docs.page().splitlines()
    sentences = rules(crd.build())
    assert len(sentences) > 20
    assert {sentence: lines.count(f"- {sentence}") for sentence in sentences} == dict.fromkeys(sentences, 1)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("rollout.maxSurge", "integer or percentage"),
        ("storage.create.size", "quantity **required**"),
        ("serving.resources.limits", "map of quantity"),
        ("serving.accelerator", "`cpu` or `nvidia` **required**"),
        ("serving.args", "list of string"),
    ],
)
def test_the_page_shows_the_types_of_fields(field: str, kind: str) -> None:
    rows = [line for line in docs.page().splitlines() if line.startswith(f"| `spec.{field}` |")]
    assert [row.split(" | ")[1] for row in rows] == [kind]


@pytest.mark.parametrize("path", generate.files(), ids=str)
def test_generated_files_are_committed_as_they_are_generated(path: Path) -> None:
    assert (ROOT / path).read_text() == generate.files()[path], "run `make generate`"
