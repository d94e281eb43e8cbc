"""The engine image's entry point: verify the artifact, decide how the engine is started, become the engine.

The one module of ``serve`` that touches the world. It imports nothing of vLLM: the check of an artifact must not wait for it, and
variables such as OMP_NUM_THREADS must be set before torch is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from encoder_plugins import catalog, compatibility
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import BadArgument, Unsupported
from encoder_plugins.plugin import Plugin, resolve
from encoder_plugins.prep.checkpoint import Checkpoint, EngineSettings
from encoder_plugins.prep.tensor_file import read_header
from encoder_plugins.serving import command, mps, signals
from encoder_plugins.serving.command import Adapter, Service
from encoder_plugins.serving.host import Host, listen_address, this_host
from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.settings import CountersFile, Settings
from encoder_plugins.serving.supervisor import Supervisor
from encoder_plugins.serving.tuning import Tuning, choose

# PEFT's names
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

# fields of PEFT that say what vLLM does not compute, with the values that it takes beside false and null
_SERVED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "use_dora": (),
        "bias": ("none",),
        "lora_bias": (),
        # other beginnings of the training, such as PiSSA's, change the model's own weights
        "init_lora_weights": ("true", "gaussian", "eva", "orthogonal", "mica", "lora_ga"),
        "modules_to_save": (),
        "layer_replication": (),
        "alora_invocation_tokens": (),
        "use_qalora": (),
        "use_bdlora": (),
    }
)
_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ``serve`` would do.

    Attributes:
        commands: One command line for each engine.
        environment: What is set for them beyond this process's own environment.
        tuning: How it was decided.
        counters: Where the processes count together; None for a single one.
    """

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    tuning: Tuning
    counters: CountersFile | None


def plan(service: Service, given: Mapping[str, str], *, dry: bool = False) -> Plan:
    """Read artifact and host, and decide how the engines are started.

    Args:
        service: What is served.
        given: The environment.
        dry: Leave nothing behind: the file in which several processes count is only named.
    """
    read = manifest.read(service.artifact)
    plugin = catalog.get(read.plugin)
    host = this_host()
    checkpoint = engine_settings(plugin, service)
    tuning = tuning_of(service, checkpoint, host)
    counters = None
    if tuning.processes > 1:
        named = CountersFile(path="COUNTERS", processes=tuning.processes)
        counters = named if dry else worker_counters.new(tuning.processes)
    serving = Settings(
        plugin=plugin.name,
        limits=dict(service.limits),
        digest=read.digest,
        adapters={adapter.name: str(adapter.path) for adapter in service.adapters},
        media_hosts=service.media_hosts,
        counters=counters,
    )
    wanted = command.environment(given, service, tuning, host.cores, serving)
    line = tuple(command.command(service, plugin, checkpoint, tuning, sys.executable, listen_address()))
    return Plan(
        commands=(line,) * tuning.engines,
        environment={name: value for name, value in wanted.items() if given.get(name) != value},
        tuning=tuning,
        counters=counters,
    )


def engine_settings(plugin: Plugin, service: Service) -> EngineSettings:
    """Read what the artifact decides about the engine.

    Raises:
        NotServable: The accelerator cannot run it.
    """
    checkpoint: Checkpoint = resolve(plugin.checkpoint)
    return checkpoint.engine_settings(service.artifact / manifest.MODEL, service.accelerator)


def tuning_of(service: Service, checkpoint: EngineSettings, host: Host) -> Tuning:
    """Read the size of the weights, and decide how they are served on ``host``."""
    model = service.artifact / manifest.MODEL
    requested = command.number_in(service.arguments, "--max-model-len") or service.max_model_len
    return choose(
        service.accelerator,
        host,
        weights=sum(path.stat().st_size for path in model.rglob("*.safetensors")),
        longest=command.longest_prompt(checkpoint, requested),
        sequences=checkpoint.batch_sequences,
        engines=service.engines,
        api_servers=command.number_in(service.arguments, "--api-server-count") or service.api_servers,
    )


def plugin_of(folder: Path) -> Plugin:
    """Return the plugin that an artifact was prepared for."""
    return catalog.get(manifest.read(folder).plugin)


def read_adapter(name: str, folder: Path, plugin: Plugin) -> Adapter:
    """Return the adapter in ``folder`` for a model of ``plugin``.

    Raises:
        BadArgument: The folder does not hold an adapter in PEFT's format, or one that is not served.
    """
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        if "lora_r" in config:
            raise BadArgument(
                f"--adapter {name}: {folder} is in the format of gliner2's save_adapter; save it in PEFT's, with"
                " PeftModel.save_pretrained"
            )
        # some layers may have ranks of their own
        ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadArgument(f"--adapter {name}: {folder} has no readable {ADAPTER_CONFIG} ({error})") from None
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise BadArgument(f"--adapter {name}: r or rank_pattern in {folder}/{ADAPTER_CONFIG} has {rank!r}")
    for field, served in _SERVED.items():
        if (value := config.get(field)) and str(value).lower() not in served:
            raise BadArgument(
                f"--adapter {name}: {field} in {folder}/{ADAPTER_CONFIG} is {json.dumps(value)[:_SHOWN]}, which vLLM does not serve;"
                " merge the adapter into the weights before prepare"
            )
    if (folder / ADAPTER_WEIGHTS).is_file():
        try:
            tensors = read_header(folder, ADAPTER_WEIGHTS).shapes
        except Unsupported as error:
            raise BadArgument(f"--adapter {name}: {folder}: {error}") from None
        command.check_adapter(name, tensors, plugin)
    return Adapter(name=name, path=folder, rank=max(ranks))


def run(service: Service, digest: str | None) -> int:
    """Verify the artifact, and become the engine, or the supervisor of several.

    Args:
        service: What is served.
        digest: What the artifact's digest must be; None trusts the artifact's own manifest.

    Returns:
        The exit status of several engines; a single one takes this process's place.

    Raises:
        ChecksumMismatch: The artifact is not what it should be.
        NotServable: This installation, or its accelerator, cannot serve it.
    """
    # the digest of a large artifact takes minutes
    signals.end_on_sigterm()
    manifest.verify(service.artifact, digest)
    command.check_servable(plugin_of(service.artifact), compatibility.installed_vllm(), os.environ)
    decided = plan(service, os.environ)
    whole = os.environ | dict(decided.environment)
    if decided.tuning.engines == 1:
        signals.hold_sigterm()
        os.execve(decided.commands[0][0], decided.commands[0], whole)
    assert decided.counters is not None
    shared = worker_counters.SharedCounters(decided.counters)
    signals.exit_on_sigterm()
    try:
        # in one folder, the engines' metrics add up, whichever process answers
        with tempfile.TemporaryDirectory(prefix="encoder-metrics-") as metrics:
            whole["PROMETHEUS_MULTIPROC_DIR"] = metrics
            shared_gpu: AbstractContextManager[Mapping[str, str]] = nullcontext({})
            next_may_start: Callable[[int], bool] = partial(_listening, shared, decided.tuning.api_servers)
            if service.accelerator == "nvidia":
                shared_gpu = mps.shared_gpu(whole)
            if command.takes_turns(service, decided.tuning):
                # engines wait for each other themselves, where they have to
                whole[command.START_TURNS] = str(Path(metrics) / "start-turns")
                next_may_start = _at_once
            with shared_gpu as variables:
                whole |= variables
                return Supervisor(decided.commands, whole, next_may_start).run()
    finally:
        Path(decided.counters.path).unlink(missing_ok=True)


def _at_once(engines: int) -> bool:
    """Start the next engine, however many there are."""
    del engines
    return True


def _listening(shared: worker_counters.SharedCounters, api_servers: int, engines: int) -> bool:
    return shared.listening() >= engines * api_servers
