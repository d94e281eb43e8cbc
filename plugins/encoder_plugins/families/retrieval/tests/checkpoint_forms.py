"""Every form of a ColBERT plugin's checkpoints on real vLLM: it passes its parity check, and no mistake in its conversion does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.families.retrieval import library_format
from encoder_plugins.parity.tests import served_model
from encoder_plugins.parity.tests.mutants import Mutant
from encoder_plugins.plugin import resolve

OUTPUTS = "encoder_plugins.families.retrieval.tests.oracle:outputs"
PYLATE = "encoder_plugins.families.retrieval.tests.pylate_oracle:outputs"
# enough to find every mistake, and few enough for a check to take a second
CASES = frozenset(
    {
        "query-word",
        "query-question",
        "query-three-hundred-words",
        "query-punctuation-words",
        "query-markers",
        "query-whitespace-around",
        "query-prompt-1",
        "query-prompt-whitespace",
        "document-question",
        "document-three-hundred-words",
        "document-punctuation-words",
        "document-markers",
        "document-prompt-1",
        "score-question",
    }
)


def check(plugin: str, published: Path, mutants: Sequence[Mutant], running: served_model.Running, folder: Path) -> None:
    """Convert a checkpoint, compare all of its rows and scores with the libraries', and then let every mistake be met.

    A checkpoint in PyLate's format is compared with PyLate, too.

    Args:
        plugin: The plugin's name.
        published: The checkpoint.
        mutants: Mistakes in its conversion; a form without any is compared by a handful of cases.
        running: The engine, whose model is exchanged.
        folder: Gets the converted checkpoint, and the mistaken ones.
    """
    declared, model = catalog.get(plugin), folder / "model"
    model.mkdir()
    checkpoint, parity = resolve(declared.checkpoint), resolve(declared.parity)
    checkpoint.check(published, {})
    checkpoint.convert(published, {}, model)
    # the forms without mistakes of their own differ in what a handful of cases shows
    cases = [case for case in parity.cases(published, ()) if mutants or case["id"] in CASES]
    expected = library_answer("sentence_transformers", OUTPUTS, str(published), cases)
    reference = Reference(artifact="", digest="", plugin=plugin, cases=tuple(cases), expected=expected)
    served = served_model.Served(declared, reference, model, folder / "mutants", "float32", running=running)
    verdict = served.verdict(served.model)
    assert verdict.result == "Passed", verdict.message
    print(f"{published.name}: {verdict.message}")
    if library_format.strips(published):
        by_pylate = library_answer("pylate", PYLATE, str(published), cases)
        served.reference = replace(reference, expected=by_pylate)
        verdict = served.verdict(served.model)
        assert verdict.result == "Passed", f"PyLate: {verdict.message}"
        served.reference = reference
    served.cases = CASES
    served_model.check(served, mutants)
