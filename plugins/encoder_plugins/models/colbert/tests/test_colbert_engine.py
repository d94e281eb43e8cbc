"""Every form of checkpoint on real vLLM passes its parity check, and no mistake in its conversion does.

One engine in this process, whose model is exchanged. Servers of the sample checkpoint are in the matrices of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_checkpoints.colbert_builder import POSITIONS
from encoder_checkpoints.original import original
from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.families.retrieval.parity import PARITY
from encoder_plugins.models.colbert.checkpoint import CHECKPOINT
from encoder_plugins.models.colbert.tests import conversion_mutants, tiny
from encoder_plugins.parity.tests import served_model

pytestmark = [
    pytest.mark.engine,
    # vLLM, torch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(1200),
]

PLUGIN = catalog.get("colbert")
OUTPUTS = "encoder_plugins.families.retrieval.tests.oracle:outputs"
# enough to find every mistake, and few enough for a check to take a second
CASES = frozenset(
    {
        "query-question",
        "query-three-hundred-words",
        "query-punctuation-words",
        "query-markers",
        "document-question",
        "document-three-hundred-words",
        "document-punctuation-words",
        "document-markers",
        "score-question",
    }
)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What an engine in this process needs of the environment."""
    with served_model.environment():
        yield


@pytest.fixture(scope="module")
def running() -> served_model.Running:
    """The engine of all checkpoints."""
    return served_model.Running(most_tokens=POSITIONS)


@pytest.mark.parametrize("name", [one.name for one in tiny.TINY])
def test_rows_and_scores_are_those_of_the_library(name: str, running: served_model.Running, tmp_path: Path) -> None:
    published, model = tiny.build(name, tmp_path), tmp_path / "model"
    model.mkdir()
    CHECKPOINT.check(published, {})
    CHECKPOINT.convert(published, {}, model)
    mutants = conversion_mutants.of(name)
    # the forms without mistakes of their own differ in what a handful of cases shows
    cases = [case for case in PARITY.cases(published, ()) if mutants or case["id"] in CASES]
    expected = original("sentence_transformers").call(OUTPUTS, str(published), cases)
    reference = Reference(artifact="", digest="", plugin=PLUGIN.name, cases=tuple(cases), expected=expected)
    served = served_model.Served(PLUGIN, reference, model, tmp_path / "mutants", "float32", running=running)
    verdict = served.verdict(served.model)
    assert verdict.result == "Passed", verdict.message
    print(f"{name}: {verdict.message}")
    served.cases = CASES
    served_model.check(served, mutants)
