"""The check that every visual retriever's engine test makes: parity on real vLLM, and no mistake in conversion passes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from encoder_checkpoints.original import original
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.parity.tests import served_model
from encoder_plugins.parity.tests.mutants import Mutant
from encoder_plugins.plugin import Accelerator, Plugin, resolve


def check(
    plugin: Plugin,
    published: Path,
    oracle: Sequence[str],
    mutants: Iterable[Mutant],
    *,
    cases: Collection[str],
    modalities: Mapping[str, int],
) -> None:
    """Convert a checkpoint, compare all built-in cases with the library, two ways of encoding images, and each mistake by some of them.

    Args:
        plugin: The plugin.
        published: The checkpoint; folders are made beside it.
        oracle: The function that computes outputs in the library's environment, and its arguments before the checkpoint.
        mutants: The mistakes.
        cases: Those that find every mistake, and are few enough for a check to take a second.
        modalities: How many of each kind vLLM prepares for in a prompt.
    """
    # vLLM warns about itself where it is imported
    from encoder_plugins.families.vision.tests import encoder_graphs

    checkpoint, parity = resolve(plugin.checkpoint), resolve(plugin.parity)
    model = published.parent / "model"
    model.mkdir()
    checkpoint.check(published, {})
    checkpoint.convert(published, {}, model)
    built_in = parity.cases(published, ())
    expected = original(plugin.reference_library).call(*oracle, str(published), built_in)
    reference = Reference(artifact="", digest="", plugin=plugin.name, cases=tuple(built_in), expected=expected)
    options: dict[str, Any] = {"limit_mm_per_prompt": dict(modalities), "mm_processor_cache_gb": 0}
    running = served_model.Running(options=options)
    mutated = published.parent / "mutants"
    served = served_model.Served(plugin, reference, model, mutated, "float32", running=running)
    verdict = served.verdict(served.model)
    assert verdict.result == "Passed", verdict.message
    print(verdict.message)
    for accelerator in get_args(Accelerator):
        settings = checkpoint.engine_settings(model, accelerator)
        assert encoder_graphs.switched_on(model, settings) == (checkpoint.encoder_graphs and accelerator == "nvidia")
    if checkpoint.encoder_graphs:
        # as on a GPU, where vLLM replays the vision encoder
        verdict = served.verdict(served.model, loaded=lambda engine: engine.collective_rpc(encoder_graphs.use))
        assert verdict.result == "Passed", verdict.message
        ((replayed, others),) = running.engine.collective_rpc(encoder_graphs.counts)
        print(f"{replayed} images by replay, {others} without: {verdict.message}")
        assert (replayed >= sum(case["image"] is not None for case in built_in), others) == (True, 0)
    served.cases = cases
    served_model.check(served, mutants)
