"""How an engine is started: its command line and its environment, decided from values alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from encoder_plugins import compatibility
from encoder_plugins.artifact.manifest import MODEL
from encoder_plugins.errors import BadArgument, NotServable
from encoder_plugins.plugin import Accelerator, Plugin
from encoder_plugins.prep.checkpoint import EngineSettings
from encoder_plugins.serving import graceful_shutdown, settings
from encoder_plugins.serving.settings import Settings
from encoder_plugins.serving.tuning import Tuning

APPLICATION = "encoder_plugins.serving.http.app.Application"
# the worker class of engines that share a GPU, and the variable that names the file they lock in turn
TURN_TAKING_WORKER = "encoder_plugins.serving.turns.TurnTakingWorker"
START_TURNS = "ENCODER_START_TURNS"
# bounds a step where long requests meet short ones
SHORT_STEP_SCHEDULER = "encoder_plugins.serving.scheduler.ShortStepScheduler"
# vLLM's options that replace the scheduler class, or need another one
OTHER_SCHEDULERS = ("--scheduler-cls", "--async-scheduling")
# vLLM's options that replace the worker class, or start replicas in an engine that wait for each other
OTHER_WORKERS = ("--worker-cls", "--data-parallel", "-dp")
SERVER = ("-m", "encoder_plugins.serving.signals", "encoder_plugins.serving.server")

# no usage statistics, no request to a hub, no plugin of another package
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "encoder",
}

# vLLM's default of VLLM_ENGINE_READY_TIMEOUT_S
READY_SECONDS = 600

# seconds; with vLLM's own 5, a client's next POST often meets a connection that is being closed
KEEP_ALIVE = "75"

# free memory that an engine on a CPU keeps, and the size from which a block is mapped by itself: more than a layer hands to the next
KEPT_BYTES = str(1 << 30)

# longest drain, and what vLLM needs to end after it; the operator's grace period must be longer
SHUTDOWN_SECONDS = int(graceful_shutdown.LONGEST_SECONDS) + 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter that requests may name.

    Attributes:
        name: What ``lora`` in a request says.
        path: A folder in PEFT's format.
        rank: The rank of its matrices.
    """

    name: str
    path: Path
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is served, and how: the arguments of ``encoder-plugins serve``.

    Attributes:
        artifact: The prepared directory.
        name: What requests call the model.
        port: The port to listen on.
        accelerator: What the engine runs on.
        dtype: The engine's dtype; None takes the plugin's own for the accelerator.
        max_model_len: Tokens of the longest prompt; None takes the checkpoint's own.
        limits: The value of every limit of the plugin.
        engines: Engines behind the port; None leaves the choice to ``tuning``.
        api_servers: API server processes of each engine; None leaves the choice to ``tuning``.
        adapters: The LoRA adapters.
        media_hosts: The hosts from which requests may have images and PDFs fetched.
        arguments: Further arguments for vLLM; where they contradict ours, they win.
    """

    artifact: Path
    name: str
    port: int
    accelerator: Accelerator
    limits: Mapping[str, int]
    dtype: str | None = None
    max_model_len: int | None = None
    engines: int | None = None
    api_servers: int | None = None
    adapters: tuple[Adapter, ...] = ()
    media_hosts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = field(default=())


def command(
    service: Service,
    plugin: Plugin,
    checkpoint: EngineSettings,
    tuning: Tuning,
    python: str,
    address: str = "0.0.0.0",
) -> list[str]:
    """Return the command line of one engine and its API servers.

    Args:
        service: What is served.
        plugin: The artifact's plugin.
        checkpoint: What the artifact decides about the engine.
        tuning: How it is served.
        python: The interpreter.
        address: The address to listen on.
    """
    arguments = {
        "--host": address,
        "--port": str(service.port),
        "--middleware": APPLICATION,
        # short requests before what long ones still have waiting; serving.engine says which is which
        "--scheduling-policy": "priority",
    }
    if tuning.api_servers > 1:
        # vLLM kills API servers that have not ended this many seconds after SIGTERM, and its default is 0
        arguments |= {"--api-server-count": str(tuning.api_servers), "--shutdown-timeout": str(SHUTDOWN_SECONDS)}
    return [
        python,
        *SERVER,
        *(part for pair in arguments.items() for part in pair),
        *("--disable-fastapi-docs", "--disable-uvicorn-access-log"),
        *_adapter_modules(service.adapters),
        *engine_arguments(service, plugin, checkpoint, tuning),
    ]


def takes_turns(service: Service, tuning: Tuning) -> bool:
    """Return whether the engines share a GPU and start at the same time, taking turns on it."""
    others = any(argument.startswith(OTHER_WORKERS) for argument in service.arguments)
    return service.accelerator == "nvidia" and tuning.engines > 1 and not others


def engine_arguments(service: Service, plugin: Plugin, checkpoint: EngineSettings, tuning: Tuning) -> list[str]:
    """Return vLLM's arguments for the engine itself, with or without a server around it; the user's own come last."""
    arguments = {
        "--model": str(service.artifact / MODEL),
        "--served-model-name": service.name,
        "--runner": "pooling",
        "--dtype": service.dtype or plugin.dtype(service.accelerator),
    }
    if (longest := service.max_model_len or checkpoint.max_model_len) is not None:
        arguments["--max-model-len"] = str(longest)
    if takes_turns(service, tuning):
        arguments["--worker-cls"] = TURN_TAKING_WORKER
    if not any(argument.startswith(OTHER_SCHEDULERS) for argument in service.arguments):
        arguments["--scheduler-cls"] = SHORT_STEP_SCHEDULER
    return [
        *(part for pair in arguments.items() for part in pair),
        *_accelerator_arguments(service.accelerator),
        *_tuning_arguments(tuning),
        *_adapter_arguments(service.adapters, service.accelerator),
        *checkpoint.arguments,
        *service.arguments,
    ]


def _accelerator_arguments(accelerator: Accelerator) -> Sequence[str]:
    if accelerator == "nvidia":
        return ()
    # compiling takes more seconds at start than it saves: most of a CPU's time is in matrix products
    return ("--enforce-eager",)


def _tuning_arguments(tuning: Tuning) -> list[str]:
    found: list[str] = []
    if tuning.batch_tokens is not None:
        found += ["--max-num-batched-tokens", str(tuning.batch_tokens)]
    if tuning.batch_sequences is not None:
        found += ["--max-num-seqs", str(tuning.batch_sequences)]
    if tuning.graph_sizes:
        found += ["--cudagraph-capture-sizes", *map(str, tuning.graph_sizes)]
    if tuning.memory_share is not None:
        found += ["--gpu-memory-utilization", str(tuning.memory_share)]
    return found


def _adapter_arguments(adapters: Sequence[Adapter], accelerator: Accelerator) -> list[str]:
    if not adapters:
        return []
    # vLLM 0.32 on a CPU applies what is in the last slot to requests without an adapter that are beside some with one
    slots = len(adapters) + (accelerator == "cpu")
    return [
        "--enable-lora",
        *("--max-loras", str(slots)),
        *("--max-lora-rank", str(lora_rank(max(adapter.rank for adapter in adapters)))),
    ]


def _adapter_modules(adapters: Sequence[Adapter]) -> list[str]:
    return ["--lora-modules", *(f"{adapter.name}={adapter.path}" for adapter in adapters)] if adapters else []


# the values that vLLM's --max-lora-rank takes
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def lora_rank(rank: int) -> int:
    """Return the smallest ``--max-lora-rank`` for adapters of ``rank``.

    Raises:
        NotServable: vLLM has no such rank.
    """
    for possible in _LORA_RANKS:
        if rank <= possible:
            return possible
    raise NotServable(f"an adapter has rank {rank}; vLLM serves ranks up to {_LORA_RANKS[-1]}")


# layers that a message names; it counts the others
_NAMED = 4


def check_adapter(name: str, tensors: Iterable[str], plugin: Plugin) -> None:
    """Refuse an adapter that changes layers whose adapters are not served.

    Args:
        name: What requests call it.
        tensors: The names of its tensors, in PEFT's form.
        plugin: What it is an adapter for.

    Raises:
        BadArgument: It changes others; the message names them.
    """
    layers = {tensor.removeprefix("base_model.model.").partition(".lora_")[0] for tensor in tensors}
    others = sorted(layer for layer in layers if not layer.startswith(plugin.adapted))
    if plugin.adapted and others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise BadArgument(
            f"--adapter {name}: it changes {', '.join(others[:_NAMED])}{more}, and {plugin.name} serves adapters of its encoder's"
            " layers only; train it for the encoder alone, or merge it into the weights before prepare"
        )


def environment(
    given: Mapping[str, str], service: Service, tuning: Tuning, cores: int, serving: Settings
) -> dict[str, str]:
    """Return the environment of an engine: ``given``, completed by our defaults, and with ``serving`` in it."""
    cores_of_engine = str(max(1, cores // tuning.engines))
    ours = QUIET | {
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE,
        # threads of the tokenizers library in each API server; by default one for each core of the machine
        "RAYON_NUM_THREADS": cores_of_engine,
    }
    if takes_turns(service, tuning):
        # the last one waits for the turns of all others
        ours["VLLM_ENGINE_READY_TIMEOUT_S"] = str(READY_SECONDS * tuning.engines)
    if service.accelerator == "cpu":
        ours |= {
            # vLLM leaves torch one thread unless this is set
            "OMP_NUM_THREADS": cores_of_engine,
            # threads that spin for long while they wait take the cores from the process that parses and answers,
            # and threads that never spin sleep through every small batch
            "GOMP_SPINCOUNT": "10000",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # what a layer gives to the next is large: glibc would have the system map, clear and unmap it each time
            "MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
            "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
            # GiB; encoders keep nothing, decoder backbones a request's keys and values
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # the engine of a model of texts starts no worker process, and is forked from the server (`cpu_platform`)
            settings.FORKED: "1",
        }
        if tuning.api_servers == 1:
            # that of a model of images starts no worker process either
            ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return ours | dict(given) | {settings.VARIABLE: serving.encode()}


def name_of(folder: Path, plugin: Plugin) -> str:
    """Return the default name of a model: its folder's, or its plugin's where the folder is named by an artifact key."""
    return plugin.name if re.fullmatch(r"[0-9a-f]{32,}", folder.name) or not folder.name else folder.name


def number_in(arguments: Sequence[str], flag: str) -> int | None:
    """Return the whole number that vLLM's own arguments give to ``flag``; None where they set none."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            text = value if equals else "".join(arguments[position + 1 : position + 2])
            return int(text) if text.isdecimal() else None
    return None


def longest_prompt(checkpoint: EngineSettings, requested: int | None) -> int:
    """Return the tokens that a batch must be able to hold; 0 where there is no lower bound.

    Args:
        checkpoint: What the artifact decides about the engine.
        requested: The number of tokens that the user set for a prompt; None for none.
    """
    return checkpoint.batch_tokens if requested is None else min(checkpoint.batch_tokens, requested)


def adapters_from(assignments: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each adapter by name, from ``name=path`` strings.

    Raises:
        BadArgument: One of them is not of that form, or a name is there twice.
    """
    found: dict[str, Path] = {}
    for assignment in assignments:
        name, _, path = assignment.partition("=")
        if not name or not path:
            raise BadArgument(f"--adapter {assignment}: it must be NAME=FOLDER")
        if name in found:
            raise BadArgument(f"--adapter {name}: the name is there twice")
        found[name] = Path(path).absolute()
    return found


def check_servable(plugin: Plugin, version: str | None, environment: Mapping[str, str]) -> None:
    """Refuse early what the engine would refuse after half a minute.

    Raises:
        NotServable: vLLM is not the supported one, or the plugin is disabled.
    """
    if (reason := compatibility.refusal(version)) is not None:
        raise NotServable(reason)
    if compatibility.disabled([plugin.name], environment):
        raise NotServable(
            f"the plugin {plugin.name} is disabled by {compatibility.SWITCH}={environment[compatibility.SWITCH]}"
        )
