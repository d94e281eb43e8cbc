"""A prepared checkpoint in an engine of this process, for tests that change what prep wrote: a mistake must never be served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from encoder_checkpoints.recording import record
from encoder_plugins import catalog
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact import reference as references
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.parity import plan as plans
from encoder_plugins.parity import verdict as verdicts
from encoder_plugins.parity.tests.mutants import Mutant
from encoder_plugins.parity.verdict import Verdict
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, advance
from encoder_plugins.serving.tests import in_process


@dataclass
class Running:
    """An engine that tests share.

    Attributes:
        most_tokens: Tokens of the longest prompt of any of its models; None for those of the first one.
        options: Further options of vLLM.
        engine: The engine; None before its first use, and after prompts that it could not answer.
    """

    most_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: Any = None


@dataclass
class Served:
    """A plugin's artifact in an engine of this process.

    Attributes:
        plugin: The plugin.
        reference: What the library computed.
        model: The sound model folder.
        folder: Where mistaken ones go.
        dtype: The engine's.
        cases: Ids of the cases that are sent; None for all.
        running: The engine.
        quantization: What the engine quantizes to, whose bounds hold; None for nothing.
    """

    plugin: Plugin
    reference: Reference
    model: Path
    folder: Path
    dtype: str
    cases: Collection[str] | None = None
    running: Running = field(default_factory=Running)
    quantization: str | None = None

    def engine(self, model: Path) -> Any:
        """Return the engine, with the model of a folder."""
        if in_process.runs(self.running.engine):
            exchange(self.running.engine, model)
            return self.running.engine
        settings = resolve(self.plugin.checkpoint).engine_settings(model, "cpu")
        most_tokens = self.running.most_tokens or settings.max_model_len
        self.running.engine = in_process.start(
            model,
            dtype=self.dtype,
            enable_chunked_prefill=False,
            max_model_len=most_tokens,
            # vLLM takes no fewer tokens than prompts
            max_num_batched_tokens=max(2 * max(most_tokens or 0, settings.batch_tokens), 512),
            gpu_memory_utilization=0.2,
            **self.running.options,
        )
        return self.running.engine

    def verdict(self, model: Path) -> Verdict:
        """Serve a model folder, and run the parity check with a part of its cases, in batches as large as they get."""
        engine = self.engine(model)
        context = ServingContext(
            model=model,
            max_model_len=engine.model_config.max_model_len,
            names=("m",),
            limits=limits.defaults(self.plugin),
            dtype=self.dtype,
        )
        processor = resolve(self.plugin.processor)(context)
        findings = []
        parity = resolve(self.plugin.parity)
        wanted = self.cases
        cases = [
            case for case in self.reference.cases if wanted is None or case["id"].removesuffix(":scores") in wanted
        ]
        tolerance = verdicts.tolerance_of(parity, self.dtype, {}, quantization=self.quantization)
        batches = plans.plan(parity, cases)[1].batches
        bodies = [json.dumps({"model": "m", **parity.body(batch.cases, batch.variant)}).encode() for batch in batches]
        for batch, body in sorted(zip(batches, bodies, strict=True), key=lambda pair: len(pair[1])):
            running = processor.run(processor.parse(self.plugin.routes[0], body), ENGINE)
            step = advance(running)
            while isinstance(step, Round):
                try:
                    answers = pooled(engine, self.plugin, step)
                except Exception:
                    # it would go on with what it has of these prompts
                    self.running.engine = None
                    raise
                step = advance(running, answers)
            findings += verdicts.examine(parity, self.reference, "together", batch, step.body)
            # whatever follows, one case outside is Failed
            if (judged := verdicts.judge(findings, tolerance, self.reference, {})).result == "Failed":
                return judged
        findings += verdicts.pooled(parity, "together", findings)
        return verdicts.judge(findings, tolerance, self.reference, {})

    def result(self, mutant: Mutant) -> tuple[str, str]:
        """Make a mistake, serve it, and return how that ended, and the words."""
        folder = self.folder / mutant.name.replace(" ", "-").replace("/", "-")
        shutil.copytree(self.model, folder)
        mutant.change(folder)
        try:
            found = self.verdict(folder)
        except Exception as error:
            # whatever loading, or the processor's start, ends with; the next model is loaded as a whole
            return "Failed", f"refused: {type(error).__name__}: {error}"
        return found.result, found.message


def exchange(engine: Any, model: Path) -> None:
    """Give a running engine the model of another folder, its weights and its configuration: cheaper than another engine."""
    engine.collective_rpc(_exchange, args=(str(model),))


def _exchange(worker: Any, model: str) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    runner = worker.model_runner
    config = runner.vllm_config
    config.model_config.model = model
    config.model_config.hf_config = get_config(model, trust_remote_code=False)
    config.model_config.hf_text_config = get_hf_text_config(config.model_config.hf_config)
    # the layers of the model before are registered by the same names
    layers = config.compilation_config.static_forward_context
    if not hasattr(runner, "started_with"):
        # what vLLM's attention on a CPU sets in its layers once, when an engine starts
        instructions = {name: layer.isa for name, layer in layers.items() if hasattr(layer, "isa")}
        # and the memory that layers of a decoder keep keys and values in; a model that cannot be loaded has neither
        caches = {name: layer.kv_cache for name, layer in layers.items() if hasattr(layer, "kv_cache")}
        runner.started_with = instructions, caches
    instructions, caches = runner.started_with
    layers.clear()
    with set_current_vllm_config(config):
        runner.load_model()
    for name, isa in instructions.items():
        layers[name].isa = isa
    for name, cache in caches.items():
        layers[name].kv_cache = cache


def pooled(engine: Any, plugin: Plugin, step: Round) -> list[torch.Tensor]:
    """Let the engine pool the prompts of one round."""
    from vllm.v1.utils import tensor_data

    from encoder_plugins.serving.engine import pooling_params, unprocessed

    outputs = engine.encode(
        [unprocessed(prompt) for prompt in step.prompts],
        [pooling_params(prompt, plugin.task) for prompt in step.prompts],
        pooling_task=plugin.task,
        use_tqdm=False,
    )
    found = [output.outputs.data for output in outputs]
    # a server's engine is another process: what vLLM cannot send from there is never answered
    assert all(len(tensor_data(tensor)) == tensor.nbytes for tensor in found)
    return found


def start(name: str, dtype: str, folder: Path, published: Path, cases: Collection[str] | None = None) -> Served:
    """Prepare a published checkpoint for the plugin ``name``; ``cases`` are those that are sent, None for all."""
    plugin = catalog.get(name)
    request = Request(plugin=plugin, source=str(published), output=folder / "artifact")
    prepare(request, Progress(lambda line: None), record)
    model = request.output / manifest.MODEL
    return Served(plugin, references.read(request.output), model, folder / "mutants", dtype, cases)


def check(served: Served, mutants: Iterable[Mutant]) -> None:
    """Let every mistake be met, between two checks of the sound model; without mistakes, one."""
    sound = served.verdict(served.model)
    print(f"{served.plugin.name} {served.dtype}: sound: {sound.result}: {sound.message}")
    assert sound.result == "Passed", sound.message
    passed = []
    wanted = [mutant for mutant in mutants if served.dtype in mutant.dtypes]
    for mutant in wanted:
        result, message = served.result(mutant)
        print(f"{served.plugin.name} {served.dtype}: {mutant.name}: {result}: {message}"[:300])
        if result != "Failed":
            passed.append((mutant.name, message))
    assert passed == []
    if wanted:
        # and nothing of them is left behind
        assert served.verdict(served.model).result == "Passed"
