"""The check that every visual retriever's engine test makes: parity on real vLLM, and no mistake in conversion passes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.parity.tests import served_model
from encoder_plugins.parity.tests.mutants import Mutant
from encoder_plugins.plugin import Plugin, resolve


def check(
    plugin: Plugin,
    published: Path,
    oracle: Sequence[str],
    mutants: Iterable[Mutant],
    *,
    cases: Collection[str],
    modalities: Mapping[str, int],
) -> None:
    """Convert a checkpoint, compare all built-in cases with the library, and each mistake by some of them.

    Args:
        plugin: The plugin.
        published: The checkpoint; folders are made beside it.
        oracle: The function that computes outputs in the library's environment, and its arguments before the checkpoint.
        mutants: The mistakes.
        cases: Those that find every mistake, and are few enough for a check to take a second.
        modalities: How many of each kind vLLM prepares for in a prompt.
    """
    checkpoint, parity = resolve(plugin.checkpoint), resolve(plugin.parity)
    model = published.parent / "model"
    model.mkdir()
    checkpoint.check(published, {})
    checkpoint.convert(published, {}, model)
    built_in = parity.cases(published, ())
    expected = library_answer(plugin.reference_library, *oracle, str(published), built_in)
    reference = Reference(artifact="", digest="", plugin=plugin.name, cases=tuple(built_in), expected=expected)
    options: dict[str, Any] = {"limit_mm_per_prompt": dict(modalities), "mm_processor_cache_gb": 0}
    running = served_model.Running(options=options)
    mutated = published.parent / "mutants"
    served = served_model.Served(plugin, reference, model, mutated, "float32", running=running)
    verdict = served.verdict(served.model)
    assert verdict.result == "Passed", verdict.message
    print(verdict.message)
    served.cases = cases
    served_model.check(served, mutants)
